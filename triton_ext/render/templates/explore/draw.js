// SVG and the fields of the page.

const SVG = "http://www.w3.org/2000/svg";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const fillOf = (number) => `fill${number % DATA.fills}`;
const clamp = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value)));
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function add(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}
// An empty picture; `grow` and `shrink`: how much larger and smaller than drawn it may be shown.
function begin(svg, width, height, grow = 1.6, shrink = 0.85) {
  svg.replaceChildren();
  svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.maxWidth = `${Math.max(100, grow * width)}px`;
  svg.style.minWidth = `${width * shrink}px`;
  return svg;
}
function label(svg, x, y, text, kind = "axis") {
  return add(svg, "text", { class: kind, x, y }, text);
}
function outline(svg, x, y, width, height, kind) {
  return add(svg, "rect", { class: `outline ${kind}`, x, y, width, height });
}
// A cell with its text, which the keyboard can reach; `data`: what it stands for.
function cellBox(svg, x, y, width, height, kind, text, data) {
  const more = Object.fromEntries(Object.entries(data).map(([name, value]) => [`data-${name}`, value]));
  const rect = add(svg, "rect", { class: `cell ${kind}`, x, y, width, height, tabindex: -1, ...more });
  if (text !== "") label(svg, x + width / 2, y + height / 2, text, "inside");
  return rect;
}

function say(root, field, text) {
  const node = $(`[data-field="${field}"]`, root);
  if (node) node.textContent = text;
}
function speak(text) { $("#spoken").textContent = text; }
function sayAll(root, values) {
  Object.entries(values).forEach(([field, text]) => say(root, field, text));
}
// Rings the cells that `belongs` takes.
function ringCells(svg, belongs) {
  $$(".ring", svg).forEach((node) => node.remove());
  for (const rect of $$(".cell", svg)) {
    const on = belongs(rect.dataset);
    rect.classList.toggle("same", on);
    if (on) add(svg, "rect", { class: "ring", ...Object.fromEntries(["x", "y", "width", "height"].map((name) => [name, rect.getAttribute(name)])) });
  }
}
// A table's row of texts.
function tableRow(texts, data = {}) {
  const line = document.createElement("tr");
  Object.assign(line.dataset, data);
  line.append(...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  return line;
}
// One Tab stop in a picture, which the arrow keys move to the nearest cell in their direction.
function focusable(svg, cell) {
  $$('[tabindex="0"]', svg).forEach((node) => node.setAttribute("tabindex", -1));
  if (cell) cell.setAttribute("tabindex", 0);
}
function middle(rect) {
  const number = (name) => Number(rect.getAttribute(name));
  return { x: number("x") + number("width") / 2, y: number("y") + number("height") / 2 };
}
function neighbour(svg, from, [dy, dx]) {
  const at = middle(from);
  let best = null, least = Infinity;
  for (const other of $$(".cell", svg)) {
    const there = middle(other), x = there.x - at.x, y = there.y - at.y;
    const ahead = dx * x + dy * y, aside = Math.abs(dx * y) + Math.abs(dy * x);
    if (ahead > 0.5 && ahead + 4 * aside < least) { best = other; least = ahead + 4 * aside; }
  }
  return best;
}
// Calls `chosen(rect)` for the cell under the pointer or reached by the keyboard.
function choosing(svg, chosen) {
  const choose = (rect) => { focusable(svg, rect); chosen(rect); };
  for (const kind of ["pointerover", "pointerdown"])
    svg.addEventListener(kind, (event) => { if (event.target.classList.contains("cell")) choose(event.target); });
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS) || !event.target.classList.contains("cell")) return;
    event.preventDefault();
    const next = neighbour(svg, event.target, ARROWS[event.key]);
    if (next) { next.focus({ preventScroll: true }); choose(next); }
  });
}
