"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const { chunk: CHUNK, bank: BANK, banks: BANKS, line: LINE } = DATA.memory;
const SVG = "http://www.w3.org/2000/svg";
const VIEWS = ["tile", "atom", "memory", "banks"];
const view = Object.fromEntries(VIEWS.map((name) => [name, document.getElementById(name)]));

let current = DATA.configurations[DATA.selected];
let selected = { row: 0, column: 0 };
let shownWindow = "";
let drawn = {};  // for each view: the rectangle of a cell, by its key

// ---------------------------------------------------------------- the layout

// A linear layout: the XOR of the bases that the bits of a coordinate select.
function xorBases(bases, value, into) {
  bases.forEach((basis, bit) => {
    if ((value >> bit) & 1) basis.forEach((part, i) => { into[i] ^= part; });
  });
  return into;
}
function place(row, column) {
  const found = [0, 0];
  xorBases(current.rows, row, found);
  xorBases(current.columns, column, found);
  return { offset: found[0], block: found[1] };
}
function coordinates(offset, block) {
  const found = current.names.map(() => 0);
  xorBases(current.offset, offset, found);
  return xorBases(current.block, block, found);
}
const byteOf = (offset) => Math.floor((offset * current.bits) / 8);
const runsDown = () => current.cell[0] > 1;
const run = () => current.cell[0] * current.cell[1];
const down = (value, step) => value - (value % step);
const cellOf = ({ row, column }) => ({ row: down(row, current.cell[0]), column: down(column, current.cell[1]) });
const keyOf = ({ row, column }) => `${row},${column}`;

// The cells of a region of elements, row by row.
function cellsIn(top, left, [height, width]) {
  const cells = [];
  for (let row = top; row < top + height; row += current.cell[0])
    for (let column = left; column < left + width; column += current.cell[1]) cells.push({ row, column });
  return cells;
}
const start = ({ row, column }, [height, width]) => ({ row: down(row, height), column: down(column, width) });
// Which 8x16B subtile of the window a cell belongs to: its place along the contiguous dimension.
function fillOf({ row, column }) {
  const along = runsDown() ? (row % current.window[0]) / current.cell[0] : (column % current.window[1]) / current.cell[1];
  return along % DATA.fills;
}
function stridedIndex({ row, column }) {
  return runsDown() ? column % current.window[1] : row % current.window[0];
}
// Cells of the window are numbered along the contiguous dimension first.
function numberOf({ row, column }) {
  const [height, width] = current.window;
  const i = (row % height) / current.cell[0], j = (column % width) / current.cell[1];
  return runsDown() ? j * (height / current.cell[0]) + i : i * (width / current.cell[1]) + j;
}
// The 8 chunks that are read together, or the cell alone.
function peersOf(cell) {
  if (!current.unit) return [cell];
  const from = start(cell, current.unit);
  return cellsIn(from.row, from.column, current.unit);
}
function wavefrontsOf(cells) {
  const seen = new Map();
  for (const cell of cells) {
    const byte = byteOf(place(cell.row, cell.column).offset);
    const group = Math.floor((byte % LINE) / CHUNK);
    if (!seen.has(group)) seen.set(group, new Set());
    seen.get(group).add(Math.floor(byte / LINE));
  }
  return Math.max(...[...seen.values()].map((lines) => lines.size));
}

// ---------------------------------------------------------------- drawing

function add(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}
function begin(name, width, height) {
  const svg = view[name];
  svg.replaceChildren();
  svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawn[name] = new Map();
  return svg;
}
function drawCell(name, cell, x, y, width, height, fill, more = {}) {
  const rect = add(view[name], "rect", {
    class: `cell fill${fill}`, x, y, width, height, tabindex: -1,
    "data-row": cell.row, "data-column": cell.column, ...more,
  });
  const list = drawn[name].get(keyOf(cell)) || [];
  list.push({ rect, x, y, width, height });
  drawn[name].set(keyOf(cell), list);
  return rect;
}
function outline(svg, x, y, width, height, kind) {
  return add(svg, "rect", { class: `outline ${kind}`, x, y, width, height });
}

function drawTile() {
  const [rows, columns] = current.drawn, [height, width] = current.cell;
  const size = runsDown() ? { x: 7, y: 18 } : { x: 18, y: 7 };
  if (run() === 1) size.x = size.y = 9;
  const left = 30, top = 18;
  const x = (column) => left + (column / width) * size.x, y = (row) => top + (row / height) * size.y;
  const svg = begin("tile", x(columns) + 4, y(rows) + 4);
  // A small tile is not blown up to the width of its panel.
  svg.style.maxWidth = `${Math.max(200, 1.6 * (x(columns) + 4))}px`;
  svg.style.minWidth = `${Math.min(x(columns) + 4, columns / width * 4)}px`;
  for (const cell of cellsIn(0, 0, current.drawn)) drawCell("tile", cell, x(cell.column), y(cell.row), size.x, size.y, fillOf(cell));
  const grid = (extent, kind) => {
    for (let row = 0; row < rows; row += extent[0])
      for (let column = 0; column < columns; column += extent[1])
        outline(svg, x(column), y(row), x(Math.min(column + extent[1], columns)) - x(column), y(Math.min(row + extent[0], rows)) - y(row), kind);
  };
  if (current.atom) grid(current.atom, "atom-outline");
  if (current.instruction) grid(current.instruction, "instruction-outline");
  // Labels at the 8x16B subtiles, or fewer where there is no room.
  const unit = current.unit || current.cell;
  const step = (extent, position, room) => {
    let many = extent;
    while (position(many) - position(0) < room) many *= 2;
    return many;
  };
  for (let row = 0; row < rows; row += step(unit[0], y, 14)) add(svg, "text", { class: "axis", x: left - 13, y: y(row) + size.y / 2 }, row);
  for (let column = 0; column < columns; column += step(unit[1], x, 26)) add(svg, "text", { class: "axis", x: x(column) + size.x / 2, y: 9 }, column);
  drawn.tile.x = x;
  drawn.tile.y = y;
}

function drawWindow() {
  const from = start(selected, current.window);
  const [height, width] = current.cell;
  const cells = cellsIn(from.row, from.column, current.window);
  const high = current.window[0] / height, wide = current.window[1] / width;
  const cw = 40, ch = 24, left = 40, top = 20;
  const svg = begin("atom", left + Math.max(wide, 8) * cw + 4, top + high * ch + 4);
  cells.forEach((cell, n) => {
    const x = left + (n % wide) * cw, y = top + Math.floor(n / wide) * ch;
    drawCell("atom", cell, x, y, cw, ch, fillOf(cell), { "data-chunk": numberOf(cell) });
    add(svg, "text", { x: x + cw / 2, y: y + ch / 2 }, numberOf(cell));
    if (n < wide) add(svg, "text", { class: "axis", x: x + cw / 2, y: 10 }, cell.column);
    if (n % wide === 0) add(svg, "text", { class: "axis", x: left - 16, y: y + ch / 2 }, cell.row);
  });
  drawMemory(cells);
}

function drawMemory(cells) {
  const found = cells.map((cell) => {
    const { offset, block } = place(cell.row, cell.column);
    return { cell, offset, block, byte: byteOf(offset) };
  });
  const lines = [...new Set(found.map((one) => Math.floor(one.byte / LINE)))].sort((a, b) => a - b);
  const perByte = 320 / LINE, ch = 24, left = 40, top = 20;
  const cellBytes = (run() * current.bits) / 8;
  const memory = begin("memory", left + LINE * perByte + 4, top + lines.length * ch + 4);
  const bh = 14;
  const banks = begin("banks", left + LINE * perByte + 4, top + lines.length * bh + 4);
  for (const one of found) {
    const line = lines.indexOf(Math.floor(one.byte / LINE));
    const x = left + (one.byte % LINE) * perByte, width = cellBytes * perByte;
    const more = { "data-chunk": numberOf(one.cell), "data-byte": one.byte };
    drawCell("memory", one.cell, x, top + line * ch, width, ch, fillOf(one.cell), more);
    if (width > 18) add(memory, "text", { x: x + width / 2, y: top + (line + 0.5) * ch }, numberOf(one.cell));
    for (let within = 0; within < cellBytes; within += Math.min(BANK, cellBytes)) {
      const bank = Math.floor(((one.byte + within) % LINE) / BANK);
      const fill = stridedIndex(one.cell) % DATA.fills;
      drawCell("banks", one.cell, x + within * perByte, top + line * bh, Math.min(BANK, cellBytes) * perByte, bh, fill, { "data-bank": bank, "data-within": within });
    }
  }
  for (let bank = 0; bank < BANKS; bank += CHUNK / BANK)
    add(memory, "text", { class: "axis", x: left + (bank * BANK + CHUNK / 2) * perByte, y: 10 }, `${bank}-${bank + CHUNK / BANK - 1}`);
  for (let bank = 0; bank < BANKS; bank += 2)
    add(banks, "text", { class: "axis", x: left + (bank + 0.5) * BANK * perByte, y: 10 }, bank);
  lines.forEach((line, i) => {
    add(memory, "text", { class: "axis", x: left - 20, y: top + (i + 0.5) * ch }, line * LINE);
    add(banks, "text", { class: "axis", x: left - 20, y: top + (i + 0.5) * bh }, line * LINE);
  });
}

function drawElements() {
  const box = document.getElementById("elements");
  const buttons = Array.from({ length: run() }, (_, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.index = index;
    return button;
  });
  box.replaceChildren(...buttons);
}

function drawBases() {
  const rows = [];
  for (const name of ["offset", "block"])
    current[name].forEach((basis, bit) => {
      const item = document.createElement("li");
      item.textContent = `${name}=${1 << bit} → (${basis.join(", ")})`;
      item.dataset.name = name;
      item.dataset.bit = bit;
      rows.push(item);
    });
  document.getElementById("bases").replaceChildren(...rows);
}

// ---------------------------------------------------------------- selecting

function say(field, text) {
  document.querySelector(`[data-field="${field}"]`).textContent = text;
}

function mark(name, cell, peers) {
  const svg = view[name];
  svg.querySelectorAll(".peer, .cursor, .window-outline").forEach((node) => node.remove());
  svg.querySelectorAll('[tabindex="0"]').forEach((node) => node.setAttribute("tabindex", -1));
  if (name === "tile") {
    const from = start(cell, current.window), [rows, columns] = current.drawn;
    if (from.row < rows && from.column < columns) {
      const { x, y } = drawn.tile;
      outline(svg, x(from.column), y(from.row), x(Math.min(from.column + current.window[1], columns)) - x(from.column), y(Math.min(from.row + current.window[0], rows)) - y(from.row), "window-outline");
    }
  } else for (const peer of peers) ring(name, peer, "peer");
  ring(name, cell, "cursor");
  const own = drawn[name].get(keyOf(cell));
  if (own) own[0].rect.setAttribute("tabindex", 0);
}
function ring(name, cell, kind) {
  const parts = drawn[name].get(keyOf(cell));
  if (!parts) return;
  const x = Math.min(...parts.map((part) => part.x)), right = Math.max(...parts.map((part) => part.x + part.width));
  add(view[name], "rect", { class: kind, x, y: parts[0].y, width: right - x, height: parts[0].height });
}

function select(point) {
  selected = point;
  const cell = cellOf(point), window_ = start(point, current.window);
  if (keyOf(window_) !== shownWindow) {
    shownWindow = keyOf(window_);
    drawWindow();
  }
  const peers = peersOf(cell);
  VIEWS.forEach((name) => mark(name, cell, peers));
  describe(point, cell, peers);
  if (ready) rememberSoon();
}

// ---------------------------------------------------------------- the state, in the address

let ready = false, pending = 0;
function remember() {
  clearTimeout(pending);
  const state = Object.entries({ ...current.choices, at: keyOf(selected) }).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  try { history.replaceState(null, "", `#${state.join("&")}`); } catch { /* a document without an address */ }
}
function rememberSoon() {
  clearTimeout(pending);
  pending = setTimeout(remember, 300);
}
// What the address asks for, if it is legal.
function recall() {
  const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const found = DATA.configurations.find((one) => same(one.choices, wanted, Object.keys(one.choices)));
  if (!location.hash || !found) return;
  const [row, column] = (wanted.at || "").split(",").map(Number);
  show(found, "");
  const point = { row, column };
  if (Number.isInteger(row) && Number.isInteger(column) && inside(point)) select(point);
}
window.addEventListener("hashchange", recall);
document.getElementById("copy").addEventListener("click", async (event) => {
  const code = document.querySelector('[data-field="attribute"]');
  getSelection().selectAllChildren(code);  // to be copied by hand, where a page may not
  try { await navigator.clipboard.writeText(code.textContent); } catch { return; }
  event.target.textContent = "Copied";
  setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
});

function describe({ row, column }, cell, peers) {
  const { offset, block } = place(row, column);
  const byte = byteOf(offset), inBlock = current.block.length ? ` (block ${block})` : "";
  const full = coordinates(offset, block);
  say("coordinate", `(${full.join(", ")})`);
  say("offset", `${offset}${inBlock}`);
  say("byte", `${byte} (0x${byte.toString(16)})`);
  say("bank", `${Math.floor((byte % LINE) / BANK)}`);
  say("chunk", `${numberOf(cell)}`);
  say("slot", `${Math.floor(byte / CHUNK)}, line ${Math.floor(byte / LINE)}`);
  const part = (extent) => {
    if (!extent) return "none";
    const from = start({ row, column }, extent);
    return `(${from.row / extent[0]}, ${from.column / extent[1]}) at ${byteOf(place(from.row, from.column).offset)} B`;
  };
  say("atom", part(current.atom));
  say("unit", part(current.unit));
  say("instruction", part(current.instruction));
  const waves = wavefrontsOf(peers);
  say("wavefronts", !current.unit ? "-" : waves === 1 ? "1: no conflict" : `${waves}: ${waves}-way conflict`);

  const along = runsDown() ? "row" : "column";
  const first = place(cell.row, cell.column).offset;
  say("elements-note", `${run()} elements of ${current.bits} bits, by their ${current.names[current.names.length - (runsDown() ? 2 : 1)]}`);
  const box = document.getElementById("elements");
  box.style.setProperty("--cell-fill", `var(--fill${fillOf(cell)})`);
  [...box.children].forEach((button, index) => {
    const on = first + index === offset;
    button.textContent = cell[along] + index;
    button.classList.toggle("on", on);
    button.tabIndex = on ? 0 : -1;
    button.setAttribute("aria-label", `offset ${first + index}`);
  });
  document.querySelectorAll("#bases li").forEach((item) => {
    const value = item.dataset.name === "offset" ? offset : block;
    item.classList.toggle("on", Boolean((value >> Number(item.dataset.bit)) & 1));
  });
}

// The element under the pointer: a cell shows its elements side by side.
function pointed(rect, event) {
  const row = Number(rect.dataset.row), column = Number(rect.dataset.column);
  const box = rect.getBoundingClientRect();
  const clamp = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value * size)));
  const inView = rect.ownerSVGElement.id;
  if (inView === "tile" || inView === "atom") {
    if (runsDown()) return { row: row + clamp((event.clientY - box.top) / box.height, run()), column };
    return { row, column: column + clamp((event.clientX - box.left) / box.width, run()) };
  }
  const { offset, block } = place(row, column);
  const share = (event.clientX - box.left) / box.width;
  let index = clamp(share, run());
  if (inView === "banks") {
    const perBank = Math.max(1, (8 * BANK) / current.bits);
    index = (8 * Number(rect.dataset.within)) / current.bits + (run() * current.bits > 8 * BANK ? clamp(share, perBank) : clamp(share, run()));
  }
  return planeOf(coordinates(offset + Math.floor(index), block));
}
function planeOf(full) {
  return { row: full.length > 1 ? full[full.length - 2] : 0, column: full[full.length - 1] };
}

// ---------------------------------------------------------------- events

function speak() {
  const text = (field) => document.querySelector(`[data-field="${field}"]`).textContent;
  document.getElementById("spoken").textContent = `element ${text("coordinate")}, offset ${text("offset")}, byte ${text("byte")}, bank ${text("bank")}`;
}
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const inside = ({ row, column }) => row >= 0 && column >= 0 && row < current.drawn[0] && column < current.drawn[1];

function moved(name, [dy, dx]) {
  const cell = cellOf(selected);
  if (name === "tile" || name === "atom") return { row: cell.row + dy * current.cell[0], column: cell.column + dx * current.cell[1] };
  const { offset, block } = place(cell.row, cell.column);
  const next = offset + dx * run() + dy * ((8 * LINE) / current.bits);
  if (next < 0 || next >= 1 << current.offset.length) return null;
  return planeOf(coordinates(next, block));
}
for (const name of VIEWS) {
  const svg = view[name];
  for (const kind of ["pointermove", "pointerdown"])
    svg.addEventListener(kind, (event) => {
      if (!event.target.classList.contains("cell")) return;
      const point = pointed(event.target, event);
      if (keyOf(point) !== keyOf(selected) && inside(point)) select(point);
    });
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const point = moved(name, ARROWS[event.key]);
    if (!point || !inside(point)) return;
    select(point);
    drawn[name].get(keyOf(cellOf(point)))[0].rect.focus({ preventScroll: name !== "tile" });
    speak();
  });
}
// Not on the views themselves: a browser takes an SVG that listens to focus for a Tab stop.
document.addEventListener("focusin", (event) => {
  if (event.target.matches(".cell:focus-visible")) speak();
});
const elements = document.getElementById("elements");
function selectIndex(index) {
  const cell = cellOf(selected);
  select(runsDown() ? { row: cell.row + index, column: cell.column } : { row: cell.row, column: cell.column + index });
}
elements.addEventListener("pointerover", (event) => {
  if (event.target.dataset.index) selectIndex(Number(event.target.dataset.index));
});
elements.addEventListener("click", (event) => {
  if (event.target.dataset.index) selectIndex(Number(event.target.dataset.index));
});
elements.addEventListener("keydown", (event) => {
  if (!(event.key in ARROWS) || !event.target.dataset.index) return;
  event.preventDefault();
  const [dy, dx] = ARROWS[event.key];
  const index = Number(event.target.dataset.index) + dx + dy;
  if (index < 0 || index >= run()) return;
  selectIndex(index);
  elements.children[index].focus();
  speak();
});

const form = document.querySelector(".controls");
const same = (one, other, names) => names.every((name) => one[name] === other[name]);
function find(wanted, names) {
  return DATA.configurations.find((one) => same(one.choices, wanted, names));
}
form.addEventListener("change", (event) => {
  const wanted = { ...current.choices, [event.target.name]: event.target.value };
  const exact = find(wanted, ["swizzle", "bits", "major", "shape"]);
  const near = exact || find(wanted, ["swizzle", "bits", "major"]);
  show(near, exact ? "" : `A tile of ${wanted.shape} does not hold whole atoms of this kind; shown: ${near.choices.shape}.`);
  remember();
});

function show(configuration, status) {
  current = configuration;
  shownWindow = "";
  drawn = {};
  for (const input of form.elements) {
    if (input.type !== "radio") continue;
    input.checked = current.choices[input.name] === input.value;
    if (input.name === "shape") input.disabled = !find({ ...current.choices, shape: input.value }, ["swizzle", "bits", "major", "shape"]);
  }
  const [height, width] = current.shape, cut = current.drawn[0] < height || current.drawn[1] < width;
  const [rowName, columnName] = current.names.length > 1 ? current.names.slice(-2) : ["", current.names[0]];
  const heading = current === DATA.configurations[DATA.selected] ? DATA.heading : current.title;
  say("heading", heading);
  document.title = heading;
  say("title", current.title);
  say("attribute", current.attribute);
  say("status", status);
  say("tile-note", `${rowName ? `${rowName} down, ` : ""}${columnName} across${cut ? `; cut: the first ${current.drawn.join("x")}` : ""}`);
  say("window-name", current.atom ? "Atom" : "Part of the tile");
  say("window-axes", `${current.window.join("x")} elements, chunks of ${(run() * current.bits) / 8} bytes`);
  say("banks-note", `of ${BANK} bytes, coloured by ${runsDown() ? columnName : rowName || columnName}`);
  document.querySelector("main").classList.toggle("wide", runsDown());
  drawTile();
  drawElements();
  drawBases();
  const kept = cellOf(selected);
  select(inside(kept) ? selected : { row: 0, column: 0 });
}
show(current, "");
recall();
ready = true;
