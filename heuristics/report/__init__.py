"""The report of measurements and of a table's configs: an HTML page, pictures, and output in notebooks."""
