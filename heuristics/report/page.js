"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);
const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
// The rows of columns.
const rowsOf = (columns) => Object.values(columns)[0].map((_, i) =>
  Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));
const current = () => data.functions[chosen("function")];
const nameOf = (given, number) => (number < 0 ? null : given.configs[number][0]);
// Without a third size it is 0 at all shapes.
const third = (given) => (given.axes.length > 2 ? given.sizes[2][fold.value] : 0);
const label = ({ axes, shapes }, i) => [shapes.x, shapes.y, shapes.z].slice(0, axes.length).map((sizes) => sizes[i]).join(" x ");

function shapesOf(given, side, rival) {
  const own = given.sides[side], other = given.sides[rival];
  return rowsOf(given.shapes)
    .map((row, i) => ({
      ...row, i,
      config: nameOf(given, own.config[i]), loss: own.loss[i],
      best: nameOf(given, row.best), best_colour: given.configs[row.best][2], differs: own.config[i] !== row.best,
      rival: other ? other.name : "", rival_config: other ? nameOf(given, other.config[i]) : null,
      rival_loss: other ? other.loss[i] : null,
    }))
    .filter((row) => row.z === third(given));
}

function regionsOf(given, side) {
  const columns = given.sides[side].regions, z = third(given);
  if (!columns) return [];
  return rowsOf(columns).filter((row) => row.z0 <= z && z <= row.z1).map((row) => {
    const [name, letter, colour, ink, group] = given.configs[row.config];
    return { ...row, name, letter, colour, ink, group };
  });
}

const gapsOf = (given) => rowsOf(given.gaps).filter((row) => row.z === third(given));

const fastestOf = (given, shape) => rowsOf(given.fastest).filter((row) => row.shape === shape).map(({ config, us, around, count }) => {
  const [low, high, ...samples] = around.map((part) => us * (1 + part / 1e4));
  const by = config === given.sides[0].config[shape] ? given.sides[0].name : "", name = nameOf(given, config);
  return { config: name, by, label: by ? `${name}, launched by ${by}` : name, us, low, high, samples, count };
});

// What a shape needs for its tile in a chart.
const needed = { faster: ["rival_loss", "loss"], copy: ["copy_us", "loss"], loss: ["loss"], map: ["loss"] };

// The layers of marks that a chart has no data for: their legends would explain nothing.
function empty(chart, { shapes, gaps }) {
  const isKnown = (row) => (needed[chart] || []).every((name) => row[name] != null);
  const isSlower = (row) => isKnown(row) && 1 + row.rival_loss < 0.99 * (1 + row.loss);
  return [["gaps", gaps.length], ["missing", !shapes.every(isKnown)], ["slower", shapes.some(isSlower)]]
    .filter(([, some]) => !some).map(([name]) => name);
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
  if (given) {
    onPlane(spec, given);
    const names = empty(name, datasets);
    spec.layer = spec.layer.filter((layer) => !names.includes(layer.name));
  }
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
  const shapes = given.shapes.z.map((size, i) => (size === z ? i : -1)).filter((i) => i >= 0);
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
  if (element("shape").value === "") return;
  const given = current(), i = Number(element("shape").value);
  const loss = given.sides[0].loss[i], name = nameOf(given, given.sides[0].config[i]);
  element("shape-about").textContent = name === null ? "" :
    `${given.sides[0].name} launches ${name}: ${loss === null ? "not measured there" : loss < 0.0005 ? "as fast as the fastest" : `${(100 * loss).toFixed(1)} % slower than the fastest`}`;
  const fastest = fastestOf(given, i), { samples, count } = fastest[0] || { samples: [], count: 0 };
  element("samples-about").textContent = samples.length < count ? `${samples.length} of ${count} samples are drawn; the intervals are of all.` : "";
  draw(element("chart-samples"), "samples", { fastest });
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
