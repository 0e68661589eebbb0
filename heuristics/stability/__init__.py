"""How far a table would change if its GPU were measured again."""
