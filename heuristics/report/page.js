"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const digit = new Map([...data.alphabet].map((character, number) => [character, number]));
const base = data.alphabet.length;
const dark = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);
const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const plain = (value) => Number(value.toPrecision(7));

// The inverse of packing.py.
function unpacked({ digits, least, unit, text }) {
  const values = [];
  for (let start = 0; start < text.length; start += digits) {
    let code = 0;
    for (let place = start; place < start + digits; place++) code = code * base + digit.get(text[place]);
    values.push(code ? plain((code - 1 + least) * unit) : null);
  }
  return values;
}

// A function with its columns unpacked, when it is shown for the first time.
function unfold(given) {
  if (given.unfolded) return given;
  for (const name of ["best", "best_us", "copy_us", "ties", "timed", "legal"]) given[name] = unpacked(given[name]);
  given.configs = unpacked(given.configs).map((number) => [data.names[number], "", ...data.other]);
  for (const [number, ...shown] of given.shown) given.configs[number].splice(1, 4, ...shown);
  given.places.map(unpacked).forEach((places, axis) => {
    const name = "xyz"[axis], edges = given.edges && given.edges[axis], around = given.around[axis];
    given[name] = places.map((place) => given.sizes[axis][place]);
    given[name + 0] = places.map((place) => (edges ? edges[place] : given.sizes[axis][place] / around));
    given[name + 1] = places.map((place) => (edges ? edges[place + 1] : given.sizes[axis][place] * around));
  });
  for (const side of given.sides) {
    side.config = unpacked(side.config);
    side.loss = unpacked(side.loss).map((log) => (log === null ? null : Math.expm1(log)));
  }
  const fastest = given.fastest;
  for (const name of ["rows", "config", "us"]) fastest[name] = unpacked(fastest[name]);
  let first = 0;
  fastest.first = fastest.rows.map((count) => (first += count) - count);
  given.unfolded = true;
  return given;
}

const current = () => unfold(data.functions[chosen("function")]);
const nameOf = (given, number) => (number === null ? null : given.configs[number][0]);
const third = (given) => (given.axes.length > 2 ? given.sizes[2][fold.value] : 0);
const label = (given, i) => [given.x[i], given.y[i], ...(given.z ? [given.z[i]] : [])].join(" x ");

function shapesOf(given, side, rival) {
  const own = given.sides[side], other = given.sides[rival], z = third(given);
  return given.x
    .map((x, i) => ({
      i, x, y: given.y[i], z: given.z ? given.z[i] : 0,
      x0: given.x0[i], x1: given.x1[i], y0: given.y0[i], y1: given.y1[i],
      config: nameOf(given, own.config[i]), loss: own.loss[i],
      best: nameOf(given, given.best[i]), best_us: given.best_us[i], best_colour: given.configs[given.best[i]][2],
      differs: own.config[i] !== given.best[i],
      copy_us: given.copy_us[i], ties: given.ties[i], timed: given.timed[i], legal: given.legal[i],
      rival: other ? other.name : "", rival_config: other ? nameOf(given, other.config[i]) : null,
      rival_loss: other ? other.loss[i] : null,
    }))
    .filter((row) => !given.z || row.z === z);
}

function regionsOf(given, side) {
  const columns = given.sides[side].regions, z = third(given);
  if (!columns) return [];
  const rows = columns.config.map((config, number) => {
    const [name, letter, colour, ink, group] = given.configs[config];
    const row = { name, letter, colour, ink, group };
    for (const column in columns) if (column !== "config") row[column] = columns[column][number];
    return row;
  });
  return given.z ? rows.filter((row) => row.z0 <= z && z <= row.z1) : rows;
}

function gapsOf(given) {
  const rows = given.gaps.x0.map((_, number) =>
    Object.fromEntries(Object.keys(given.gaps).map((name) => [name, given.gaps[name][number]])));
  return given.z ? rows.filter((row) => row.z === third(given)) : rows;
}

function fastestOf(given, i) {
  const fastest = given.fastest, wide = fastest.count + 2;
  return Array.from({ length: fastest.rows[i] }, (_, rank) => {
    const row = fastest.first[i] + rank, us = Math.exp(fastest.us[row]) * given.best_us[i];
    const [low, high, ...samples] = [...fastest.around.slice(row * wide, (row + 1) * wide)]
      .map((text) => digit.get(text))
      .filter((code) => code < base - 1)
      .map((code) => code - data.half)
      .map((level) => us * (1 + data.fine * Math.sinh((level / data.half) * Math.asinh(fastest.extent / data.fine))));
    return { config: nameOf(given, fastest.config[row]), us, low, high, samples };
  });
}

// A chart was made for the plane of the first function: it gets that of another one.
function onPlane(spec, given) {
  const visit = (part) => {
    if (Array.isArray(part)) part.forEach(visit);
    else if (part && typeof part === "object") {
      ["x", "y"].forEach((channel, axis) => {
        const encoding = part.encoding && part.encoding[channel];
        if (encoding && encoding.scale && encoding.axis && encoding.axis.values) {
          encoding.scale.domain = given.domains[axis];
          encoding.axis.values = given.ticks[axis];
          encoding.title = given.axes[axis];
        }
      });
      if (part.encoding && part.encoding.tooltip)
        part.encoding.tooltip = part.encoding.tooltip
          .filter((told) => told.field !== "z")
          .map((told) => (told.field === "x" || told.field === "y" ? { ...told, title: given.axes["xy".indexOf(told.field)] } : told));
      Object.values(part).forEach(visit);
    }
  };
  visit(spec);
  return spec;
}

async function draw(target, name, datasets, given) {
  const theme = dark.matches ? data.themes.dark : data.themes.light;
  const spec = { ...structuredClone(data.specs[name]), ...structuredClone(theme), datasets };
  const narrow = target.clientWidth < 560;
  if (narrow) spec.config.legend.layout.top.direction = "vertical";
  const rows = datasets.fastest && datasets.fastest.length;
  if (rows) spec.height = spec.height.step * (rows + 0.5);
  if (given) onPlane(spec, given);
  for (const { data: { name }, encoding } of datasets.groups ? spec.layer : []) {
    if (narrow && encoding.size) encoding.size.legend.titleOrient = "top";
    if (name !== "groups") continue;
    encoding.fill.scale = { domain: datasets.groups.map((row) => row.group), range: datasets.groups.map((row) => row.colour) };
    if (narrow) encoding.fill.legend.columns = 2;
  }
  const turn = (target.turn = (target.turn || 0) + 1);
  const { view } = await vegaEmbed(target, spec, { actions: false, renderer: "svg", tooltip: { theme: dark.matches ? "dark" : "light" } });
  if (turn !== target.turn) return;
  if (given)
    for (const event of ["mouseover", "click"])
      view.addEventListener(event, (_, item) => {
        if (item && item.datum && item.datum.i !== undefined && element("shape").value !== `${item.datum.i}`) {
          element("shape").value = item.datum.i;
          showSamples();
        }
      });
}

function options(select, entries) {
  const before = select.selectedOptions[0] && select.selectedOptions[0].textContent;
  select.replaceChildren(...entries.map(([value, text]) => {
    const option = document.createElement("option");
    [option.value, option.textContent, option.selected] = [value, text, text === before];
    return option;
  }));
  select.closest("label").hidden = entries.length < 2 && select.id !== "rival";
}

const fold = document.querySelector(".fold input");

function showFunction() {
  const given = current(), folded = given.axes.length > 2;
  fold.closest(".fold").hidden = !folded;
  if (folded) {
    fold.max = given.sizes[2].length - 1;
    document.querySelector(".fold-name").textContent = given.axes[2];
    document.querySelector(".fold output").textContent = third(given);
  }
  options(element("side"), given.sides.map((side, number) => [number, side.name]).filter(([number]) => given.sides[number].regions));
  options(element("rival"), given.sides.map((side, number) => [number, side.name]).slice(1));
  const faster = document.querySelector('input[name="measure"][value="faster"]');
  faster.closest("label").hidden = given.sides.length < 2;
  if (faster.checked && given.sides.length < 2) document.querySelector('input[name="measure"][value="loss"]').checked = true;
  const loss = given.sides[0].loss, z = third(given);
  const shapes = given.x.map((_, i) => i).filter((i) => !given.z || given.z[i] === z);
  const worst = shapes.reduce((most, i) => ((loss[i] ?? -1) > (loss[most] ?? -1) ? i : most), shapes[0]);
  options(element("shape"), shapes.map((i) => [i, label(given, i)]));
  if (shapes.length) element("shape").value = worst;
  element("shape").closest("label").hidden = false;
  showMap();
  showMeasure();
  showSamples();
}

function showMap() {
  const given = current(), side = element("side").value || 0;
  const regions = regionsOf(given, side), shapes = shapesOf(given, side, element("rival").value);
  draw(element("chart-map"), "map", { shapes, regions, gaps: gapsOf(given), groups: given.sides[side].groups, key: [] }, given);
  const names = [...new Map(regions.map((row) => [row.name, row])).values()];
  names.sort((one, two) => one.letter.length - two.letter.length || one.letter.localeCompare(two.letter));
  document.querySelector(".configs summary").textContent = `${names.length} config${names.length === 1 ? "" : "s"}`;
  document.querySelector(".configs ol").replaceChildren(...names.map((row) => {
    const [item, swatch, name] = ["li", "span", "span"].map((tag) => document.createElement(tag));
    swatch.className = "swatch";
    [swatch.textContent, swatch.style.background, swatch.style.color] = [row.letter, row.colour, row.ink];
    name.textContent = row.name;
    item.append(swatch, name);
    return item;
  }));
}

function showMeasure() {
  const given = current(), measure = chosen("measure"), rival = element("rival").value;
  document.querySelector(".of-rival").hidden = measure !== "faster" || given.sides.length < 2;
  const side = measure === "loss" ? element("side").value || 0 : 0;
  draw(element("chart-measure"), measure, { shapes: shapesOf(given, side, rival), regions: regionsOf(given, side), gaps: gapsOf(given) }, given);
}

function showSamples() {
  const given = current(), i = element("shape").value;
  if (i === "") return;
  const loss = given.sides[0].loss[i], name = nameOf(given, given.sides[0].config[i]);
  element("shape-about").textContent = name === null ? "" :
    `${given.sides[0].name} launches ${name}: ${loss === null ? "not measured there" : loss < 0.0005 ? "as fast as the fastest" : `${(100 * loss).toFixed(1)} % slower than the fastest`}`;
  const { count, of } = given.fastest;
  element("samples-about").textContent = count < of ? `${count} of some ${of} samples are drawn; the intervals are of all.` : "";
  draw(element("chart-samples"), "samples", { fastest: fastestOf(given, i) });
}

document.querySelector(".functions").addEventListener("change", showFunction);
document.querySelector(".measures").addEventListener("change", showMeasure);
element("side").addEventListener("change", () => { showMap(); showMeasure(); });
element("rival").addEventListener("change", () => { showMap(); showMeasure(); });
element("shape").addEventListener("change", showSamples);
fold.addEventListener("input", showFunction);
dark.addEventListener("change", showFunction);
for (const link of document.querySelectorAll("[data-function]"))
  link.addEventListener("click", () => {
    document.querySelector(`input[name="function"][value="${link.dataset.function}"]`).checked = true;
    showFunction();
  });
showFunction();
