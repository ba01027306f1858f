"use strict";
// Draws the report from the JSON in this page. Names in it are whatever a program has made of them: they become text and nothing else.

const data = JSON.parse(document.getElementById("profile-data").textContent);
const METRICS = [
  { key: "cycles", title: "Cycles", aspect: "cycles", unit: "cycles" },
  { key: "loads", title: "Loads", aspect: "loads", unit: "loads" },
  { key: "latency", title: "Load latency", aspect: "loads", unit: "cycles of latency" },
  { key: "mispredictions", title: "Mispredictions", aspect: "mispredictions", unit: "mispredicted branches" },
];
const LEVEL_COLOURS = {
  "L1": "--near-1", "fill buffer": "--near-2", "L2": "--near-3", "L3": "--near-4", "L4": "--near-4", "memory": "--far-1",
  "another package's cache": "--far-1", "another package's memory": "--far-2", "I/O or uncached": "--far-2", "unknown": "--none",
};
const events = new Map(data.events.map((event) => [event.aspect, event]));
const offered = METRICS.map((metric, index) => ({ ...metric, index })).filter((metric) => events.has(metric.aspect));
let metric = offered[0].index;

// make("p", {class: "x"}, "text", element): the only way that anything gets into the page.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null) element.setAttribute(name, value);
  }
  for (const child of children) element.append(child);
  return element;
}

const share = (value, whole) => (whole ? value / whole : 0);
const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.0995 ? 2 : 1)} %`;
const whole_number = (value) => value.toLocaleString("en-US");
function short_number(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${(value / size).toFixed(2)} ${unit}`;
  return String(value);
}
const name_of = (index) => data.names[index][0];
const module_of = (index) => data.names[index][1];
const file_of = (module) => (module.startsWith("[") ? module : module.slice(module.lastIndexOf("/") + 1));

// A file that is no shared library is a program.
function kind_of(index) {
  const module = module_of(index);
  if (module === "process" || index === data.nodes[0][1]) return "process";
  if (module === "") return "unknown";
  if (module.startsWith("[")) return module === "[vdso]" ? "library" : "kernel";
  return /\.so(\.|$)/.test(file_of(module)) ? "library" : "program";
}

function quality_of(key) {
  const event = events.get(key);
  return event ? event.quality : "not recorded";
}
function worth(aspect) {
  const event = events.get(aspect);
  if (!event) return "";
  const rate = event.period ? `a sample for each ${whole_number(event.period)}` : "samples by frequency";
  return `${event.name}: ${event.quality}; ${event.precise ? "precise" : "not precise"}; ${rate}, ${whole_number(event.samples)} samples.`;
}

function header() {
  const run = data.run;
  const facts = [
    ["Model", run.set ? `${run.model} with ${run.set}` : run.model], ["Guest's kernel", run.kernel], ["Run by", run.accel === "soft" ? "the instruction engine, without KVM" : "KVM"],
    ["Source", run.source], ["Time", run.time], ["Sampling itself", run.sampling], ["Lost samples", run.lost ? `${whole_number(run.lost)} times` : "none"],
    ["Exit code", run.stopped ? `${run.exit_code}: stopped by --timeout` : run.exit_code], ["vpmu", run.vpmu],
  ];
  const list = make("dl", { class: "facts" });
  for (const [term, value] of facts) list.append(make("div", {}, make("dt", {}, term), make("dd", {}, String(value))));
  return make("header", {}, make("h1", {}, "Profile of ", make("code", {}, run.command.join(" "))), list);
}

function cards() {
  const box = make("div", { class: "cards", role: "list", "aria-label": "What was recorded" });
  for (const { title, index, aspect } of offered) {
    box.append(make("div", { class: "card", role: "listitem" },
      make("div", { class: "what" }, title),
      make("div", { class: "number" }, short_number(data.total[index])),
      make("div", { class: "worth" }, quality_of(aspect)),
      make("div", { class: "worth" }, `${whole_number(events.get(aspect).samples)} samples`)));
  }
  return box;
}

// The flame graph: the root on top, what it called below.
const children_of = data.nodes.map(() => []);
data.nodes.forEach(([parent], node) => { if (node > 0) children_of[parent].push(node); });
for (const list of children_of) list.sort((a, b) => (name_of(data.nodes[a][1]) < name_of(data.nodes[b][1]) ? -1 : 1));
const flame = { top: 0, current: 0, elements: new Map() };
const ROW = 20, NARROWEST = 0.0008, NAMED = 0.02;

function frame_text(node) {
  const [, name, totals] = data.nodes[node];
  const module = module_of(name) && module_of(name) !== "process" ? `, ${file_of(module_of(name))}` : "";
  return `${name_of(name)}${module}: ${percent(share(totals[metric], data.total[metric]))}, ${whole_number(totals[metric])} ${METRICS[metric].unit}`;
}

function draw_frame(node, depth, left, width, is_above) {
  const name = data.nodes[node][1];
  const element = make("div", {
    class: `frame ${kind_of(name)}${width > NAMED ? " named" : ""}${is_above ? " above" : ""}`, role: "treeitem", tabindex: "-1", "aria-level": depth + 1,
    "aria-label": frame_text(node), "data-node": node,
    style: { left: `${100 * left}%`, width: `${100 * width}%`, top: `${depth * ROW}px` },
  }, width > NAMED ? name_of(name) : "");
  flame.elements.set(node, { element, depth, left });
  flame.box.append(element);
}

function draw_flame() {
  flame.elements.clear();
  flame.box.replaceChildren();
  const path = [];
  for (let node = flame.top; node !== 0; node = data.nodes[node][0]) path.unshift(node);
  [0, ...path].slice(0, path.length).forEach((node, depth) => draw_frame(node, depth, 0, 1, true));
  let deepest = path.length;
  const size = data.nodes[flame.top][2][metric];
  const waiting = size ? [[flame.top, path.length, 0]] : [];
  while (waiting.length) {
    const [node, depth, left] = waiting.pop();
    draw_frame(node, depth, left, data.nodes[node][2][metric] / size, false);
    deepest = Math.max(deepest, depth);
    let at = left;
    for (const child of children_of[node]) {
      const width = data.nodes[child][2][metric] / size;
      if (width >= NARROWEST) waiting.push([child, depth + 1, at]);
      at += width;
    }
  }
  flame.box.style.height = `${(deepest + 1) * ROW}px`;
  flame.reset.disabled = flame.top === 0;
  if (!flame.elements.has(flame.current)) flame.current = flame.top;
  const current = flame.elements.get(flame.current);
  if (current) current.element.tabIndex = 0;
  flame.said.textContent = size ? frame_text(flame.current) : `No samples of ${METRICS[metric].title.toLowerCase()}.`;
  mark_found();
}

function go_to(node) {
  const old = flame.elements.get(flame.current);
  if (old) old.element.tabIndex = -1;
  flame.current = node;
  const now = flame.elements.get(node);
  now.element.tabIndex = 0;
  now.element.focus();
}

function zoom(node) {
  flame.top = node;
  flame.current = node;
  const had_focus = flame.box.contains(document.activeElement) || document.activeElement === flame.reset;
  draw_flame();
  if (had_focus && flame.elements.has(node)) go_to(node);
}

function neighbour(node, direction) {
  const here = flame.elements.get(node);
  const row = [...flame.elements].filter(([, other]) => other.depth === here.depth).sort((a, b) => a[1].left - b[1].left);
  const at = row.findIndex(([other]) => other === node) + direction;
  return row[at] ? row[at][0] : node;
}

function flame_key(event) {
  const node = flame.current;
  const drawn = (list) => list.filter((child) => flame.elements.has(child));
  const moves = {
    ArrowUp: () => go_to(flame.elements.has(data.nodes[node][0]) ? data.nodes[node][0] : node),
    ArrowDown: () => {
      const below = drawn(children_of[node]).sort((a, b) => data.nodes[b][2][metric] - data.nodes[a][2][metric]);
      if (below.length) go_to(below[0]);
    },
    ArrowLeft: () => go_to(neighbour(node, -1)),
    ArrowRight: () => go_to(neighbour(node, 1)),
    Enter: () => zoom(node),
    " ": () => zoom(node),
    Home: () => go_to(0),
    Escape: () => zoom(0),
  };
  if (!moves[event.key] || !flame.elements.has(node)) return;
  event.preventDefault();
  moves[event.key]();
}

function flame_section() {
  flame.box = make("div", { class: "flame", id: "flame", role: "tree", "aria-label": "Flame graph: calls from top to bottom, as wide as their share" });
  flame.said = make("output", { "aria-live": "polite" });
  flame.reset = make("button", { type: "button" }, "Whole program");
  flame.reset.addEventListener("click", () => zoom(0));
  const node_of = (event) => { const frame = event.target.closest(".frame"); return frame ? Number(frame.dataset.node) : null; };
  flame.box.addEventListener("click", (event) => { const node = node_of(event); if (node !== null) zoom(node); });
  for (const kind of ["mouseover", "focusin"])
    flame.box.addEventListener(kind, (event) => { const node = node_of(event); if (node !== null) flame.said.textContent = frame_text(node); });
  flame.box.addEventListener("keydown", flame_key);
  const legend = make("div", { class: "legend", "aria-hidden": "true" });
  for (const [kind, title] of [["program", "program"], ["library", "library"], ["kernel", "kernel"], ["process", "process"], ["unknown", "not known"]])
    legend.append(make("span", { class: kind }, title));
  return make("section", { "aria-labelledby": "flame-title" }, make("h2", { id: "flame-title" }, "Flame graph"),
    make("p", { class: "lead" }, "Who called whom, and what share each has. Click a frame, or press Enter on it, to see it alone; Escape shows all again; arrow keys move."),
    legend, make("div", { class: "flame-bar" }, flame.reset, flame.said), make("div", { class: "flame-view" }, flame.box));
}

// As long as its part of the longest.
function bar(part, most, colour) {
  return make("div", { class: "bar-track" }, make("i", { "aria-hidden": "true", "--part": `${100 * share(part, most)}%`, ...(colour ? { "--fill": `var(${colour})` } : {}) }), make("span", {}, percent(part)));
}

// The functions' table.
const table = { sort: 0, all: false };
const FEW = 20;
const columns = () => [
  { title: "Self", of: (f) => share(f.self[metric], data.total[metric]), bar: true },
  { title: "With callees", of: (f) => share(f.total[metric], data.total[metric]) },
  ...offered.filter(({ index }) => index !== metric).map(({ index, title }) => ({ title, of: (f) => share(f.self[index], data.total[index]) })),
];

function fill_heads() {
  table.heads.replaceChildren(make("th", { scope: "col" }, "Function"), make("th", { scope: "col" }, "Module"), ...columns().map((column, index) => {
    const sorter = make("button", { type: "button" }, column.title);
    sorter.addEventListener("click", () => { table.sort = index; fill_functions(); });
    return make("th", { scope: "col", class: column.bar ? "bar-cell number" : "number" }, sorter);
  }));
}

function function_row(f, most) {
  const row = make("tr", { tabindex: "0" }, make("td", { class: "name" }, name_of(f.name)), make("td", { class: "module" }, module_of(f.name) || "not known"));
  for (const each of columns()) row.append(each.bar ? make("td", { class: "bar-cell" }, bar(each.of(f), most)) : make("td", { class: "number" }, percent(each.of(f))));
  const open = () => show_code(f.name);
  row.addEventListener("click", open);
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
  return row;
}

function fill_functions() {
  const words = search.value.trim().toLowerCase();
  const by = columns()[table.sort].of;
  const rows = data.functions.filter((f) => module_of(f.name) !== "process" && (!words || name_of(f.name).toLowerCase().includes(words)));
  rows.sort((a, b) => by(b) - by(a));
  const most = Math.max(...rows.map(columns()[0].of));
  table.body.replaceChildren(...(table.all || words ? rows : rows.slice(0, FEW)).map((f) => function_row(f, most)));
  [...table.heads.children].slice(2).forEach((head, index) => {
    if (index === table.sort) head.setAttribute("aria-sort", "descending"); else head.removeAttribute("aria-sort");
  });
  table.more.hidden = rows.length <= FEW || words !== "";
  table.more.textContent = table.all ? `Only the first ${FEW}` : `All ${rows.length} functions`;
  table.none.hidden = rows.length > 0;
}

function show_code(name) {
  const code = document.getElementById(`code-${name}`);
  if (!code) return;
  code.open = true;
  code.scrollIntoView({ block: "start" });
  code.querySelector("summary").focus();
}

function functions_section() {
  table.body = make("tbody", { id: "functions" });
  table.none = make("p", { class: "lead" }, "No function has this name.");
  table.more = make("button", { type: "button" });
  table.more.addEventListener("click", () => { table.all = !table.all; fill_functions(); });
  table.heads = make("tr", {});
  table.lead = make("p", { class: "lead" });
  return make("section", { "aria-labelledby": "functions-title" }, make("h2", { id: "functions-title" }, "Functions"), table.lead,
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, table.heads), table.body)),
    table.none, make("p", {}, table.more));
}

function code_table(code) {
  const wanted = offered.filter(({ key }) => key !== "loads");
  const most = wanted.map(({ index }) => Math.max(1, ...data.annotated.flatMap((each) => each.lines.map((line) => line.weights[index]))));
  const whole = wanted.map(({ index }) => code.lines.reduce((sum, line) => sum + line.weights[index], 0));
  const body = make("tbody", {});
  for (const line of code.lines) {
    const row = make("tr", line.gap ? { class: "gap" } : {});
    wanted.forEach(({ index }, at) => {
      const value = line.weights[index];
      row.append(make("td", { class: "heat", "--share": (0.6 * value / most[at]).toFixed(3) }, value ? percent(share(value, whole[at])) : ""));
    });
    row.append(make("td", { class: "quiet" }, line.address), make("td", {}, line.text), make("td", { class: "quiet" }, line.source));
    body.append(row);
  }
  const heads = [...wanted.map(({ title }) => make("th", { scope: "col", class: "number" }, title)), ...["Address", "Instruction", "Source"].map((title) => make("th", { scope: "col" }, title))];
  return make("div", { class: "scroll" }, make("table", { class: "listing" }, make("thead", {}, make("tr", {}, ...heads)), body));
}

function code_section() {
  const section = make("section", { "aria-labelledby": "code-title" }, make("h2", { id: "code-title" }, "Hottest code"),
    make("p", { class: "lead" }, "The instructions of the functions that have most, and what share of the function each has. Code far from any sample is left out."));
  const shown = data.annotated.filter((code) => code.lines.length);
  shown.forEach((code, at) => {
    const self = data.functions.find((f) => f.name === code.name);
    const shares = offered.map(({ title, index }) => [title.toLowerCase(), self ? share(self.self[index], data.total[index]) : 0]).filter(([, part]) => part >= 0.005);
    const details = make("details", { id: `code-${code.name}` }, make("summary", {}, make("code", {}, name_of(code.name)), " ",
      make("span", { class: "quiet" }, `${file_of(module_of(code.name))}: ${shares.map(([title, part]) => `${percent(part)} of ${title}`).join(", ")}`)), code_table(code));
    details.open = at < 2;
    section.append(details);
  });
  const missing = data.annotated.filter((code) => !code.lines.length);
  if (missing.length) {
    section.append(make("h3", {}, "Not shown"), make("ul", { class: "plain quiet" },
      ...missing.map((code) => make("li", {}, make("code", {}, name_of(code.name)), ": ", code.why_not))));
  }
  return section;
}

function table_of(heads, rows, caption) {
  const head = make("tr", {}, ...heads.map(([title, kind]) => make("th", { scope: "col", class: kind || null }, title)));
  return make("div", { class: "scroll" }, make("table", {}, make("caption", { class: "visually-hidden" }, caption), make("thead", {}, head), make("tbody", {}, ...rows)));
}
const number_cell = (text) => make("td", { class: "number" }, text);
const mean = (count) => (count.loads ? (count.latency / count.loads).toFixed(1) : "-");

function level_rows() {
  return data.levels.map((count) => make("tr", { tabindex: "0" }, make("td", {}, count.level),
    make("td", { class: "bar-cell" }, bar(share(count.loads, data.total[1]), 1, LEVEL_COLOURS[count.level])),
    make("td", { class: "bar-cell" }, bar(share(count.latency, data.total[2]), 1, LEVEL_COLOURS[count.level])),
    number_cell(mean(count)), number_cell(whole_number(count.longest)), number_cell(percent(share(count.tlb_misses, count.loads))), number_cell(whole_number(count.samples))));
}

function function_level_rows() {
  return data.function_levels.map((f) => {
    const counts = Object.entries(f.levels);
    const loads = counts.reduce((sum, [, count]) => sum + count.loads, 0);
    const latency = counts.reduce((sum, [, count]) => sum + count.latency, 0);
    const said = counts.map(([level, count]) => `${level} ${percent(share(count.loads, loads))}`).join(", ");
    const stack = make("div", { class: "stack", role: "img", "aria-label": said, title: said },
      ...counts.map(([level, count]) => make("i", { style: { width: `${100 * share(count.loads, loads)}%` }, "--swatch": `var(${LEVEL_COLOURS[level]})` })));
    return make("tr", { tabindex: "0" }, make("td", { class: "name" }, name_of(f.name)), make("td", {}, stack), number_cell(mean({ loads, latency })),
      number_cell(percent(share(latency, data.total[2]))), number_cell(percent(share(loads, data.total[1]))));
  });
}

function loads_section() {
  const section = make("section", { id: "loads", "aria-labelledby": "loads-title" }, make("h2", { id: "loads-title" }, "Where loads were served"), make("p", { class: "lead" }, worth("loads")));
  if (!data.levels.length) {
    section.append(make("p", {}, events.has("loads") ? "No load was sampled." : "Loads were not recorded: see below."));
    return section;
  }
  section.append(table_of([["Level"], ["Share of loads", "number"], ["Share of latency", "number"], ["Mean latency", "number"], ["Longest", "number"], ["TLB misses", "number"], ["Samples", "number"]], level_rows(), "Loads by the level that served them; latency in cycles"),
    make("h3", {}, "By function"));
  const legend = make("div", { class: "legend", "aria-hidden": "true" }, ...data.levels.map(({ level }) => make("span", { "--swatch": `var(${LEVEL_COLOURS[level]})` }, level)));
  section.append(legend, table_of([["Function"], ["Levels"], ["Mean latency", "number"], ["Share of latency", "number"], ["Share of loads", "number"]], function_level_rows(), "The functions whose loads have the most latency"));
  return section;
}

function branch_rows() {
  const text_of = new Map();
  for (const code of data.annotated) for (const line of code.lines) if (line.samples[2]) text_of.set(`${code.name} ${line.offset}`, line);
  return data.branches.slice(0, 25).map((branch) => {
    const line = text_of.get(`${branch.name} ${branch.offset}`);
    return make("tr", { tabindex: "0" }, make("td", { class: "name" }, `${name_of(branch.name)}+0x${branch.offset.toString(16)}`), make("td", { class: "module" }, file_of(module_of(branch.name)) || "not known"),
      make("td", { class: "code" }, line ? line.text : ""), make("td", { class: "module" }, line ? line.source : ""),
      make("td", { class: "bar-cell" }, bar(share(branch.mispredictions, data.total[3]), share(data.branches[0].mispredictions, data.total[3]))), number_cell(whole_number(branch.mispredictions)), number_cell(whole_number(branch.samples)));
  });
}

function branches_section() {
  const section = make("section", { id: "branches", "aria-labelledby": "branches-title" }, make("h2", { id: "branches-title" }, "Mispredicted branches"), make("p", { class: "lead" }, worth("mispredictions")));
  if (data.branches.length) section.append(table_of([["Branch"], ["Module"], ["Instruction"], ["Source"], ["Share", "number"], ["Mispredictions", "number"], ["Samples", "number"]], branch_rows(), "The branches that were mispredicted most"));
  else section.append(make("p", {}, events.has("mispredictions") ? "No misprediction was sampled." : "Mispredictions were not recorded: see below."));
  return section;
}

function quality_section() {
  const rows = data.events.map((event) => make("tr", { tabindex: "0" }, make("td", {}, event.aspect), make("td", { class: "name" }, event.name), make("td", {}, event.quality),
    make("td", {}, event.precise ? "the very instruction" : "some instructions later"), number_cell(event.period ? whole_number(event.period) : "by frequency"), number_cell(whole_number(event.samples)), number_cell(whole_number(event.total)),
    make("td", { class: "code quiet" }, event.perf)));
  const section = make("section", { "aria-labelledby": "quality-title" }, make("h2", { id: "quality-title" }, "What the numbers are worth"),
    make("p", { class: "lead" }, "Numbers are samples times what each stands for. How the source delivers each event, as `vpmu events` tells it:"),
    table_of([["What"], ["Event"], ["Quality"], ["A sample names"], ["Period", "number"], ["Samples", "number"], ["Total", "number"], ["perf -e"]], rows, "Events, and how good they are"));
  const sentences = [...data.lacking, ...data.notes];
  if (sentences.length) section.append(make("h3", {}, "What is lacking"), make("ul", { class: "plain" }, ...sentences.map((text) => make("li", {}, text))));
  return section;
}

function controls() {
  const choices = make("fieldset", { class: "choices" }, make("legend", { class: "visually-hidden" }, "What the flame graph and the functions show"));
  for (const { index, title } of offered) {
    const input = make("input", { type: "radio", name: "metric", value: index });
    input.checked = index === metric;
    input.addEventListener("change", () => { metric = index; table.sort = 0; draw_all(); });
    choices.append(make("label", {}, input, title));
  }
  return make("div", { class: "controls" }, choices, make("label", {}, make("span", { class: "visually-hidden" }, "Find a function"), search), found);
}

const search = make("input", { type: "search", placeholder: "Find a function ( / )", autocomplete: "off", spellcheck: "false" });
const found = make("output", { class: "quiet", "aria-live": "polite" });

// A match below another one is part of its share.
function mark_found() {
  const words = search.value.trim().toLowerCase();
  const matches = data.names.map(([name]) => words !== "" && name.toLowerCase().includes(words));
  for (const [node, { element }] of flame.elements) element.classList.toggle("found", matches[data.nodes[node][1]]);
  let sum = 0;
  const inside = [];
  data.nodes.forEach(([parent, name, totals], node) => {
    inside[node] = matches[name] || (node > 0 && inside[parent]);
    if (matches[name] && !(node > 0 && inside[parent])) sum += totals[metric];
  });
  found.textContent = words ? `${percent(share(sum, data.total[metric]))} of ${METRICS[metric].title.toLowerCase()} in what matches` : "";
}

function draw_all() {
  table.lead.textContent = worth(METRICS[metric].aspect);
  draw_flame();
  fill_heads();
  fill_functions();
}

document.title = `vpmu profile: ${data.run.command.join(" ")}`;
document.getElementById("page").append(header(), cards(), controls(), flame_section(), functions_section(), code_section(), loads_section(), branches_section(), quality_section(),
  make("footer", {}, "The same samples are in perf.data beside this file: ", make("code", {}, "perf report -i perf.data --kallsyms kallsyms")));
search.addEventListener("input", () => { mark_found(); fill_functions(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
});
draw_all();
