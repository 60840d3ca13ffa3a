// A tile as a plane of cells: in logical order, its atom, the lines of shared memory, the banks.

const MAX_DRAWN_CELLS = 4096;
const keyOf = (point) => point.join(",");
const down = (value, step) => value - (value % step);

// The dimension along which memory counts up by one, and for how many elements.
function contiguousRun(tile) {
  const limit = (8 * CHUNK) / tile.bits;
  let along = -1, run = 1;
  for (const basis of tile.offset) {
    const moved = basis.flatMap((step, dim) => (step ? [dim] : []));
    if (run >= limit || moved.length !== 1 || basis[moved[0]] !== run || (along >= 0 && along !== moved[0])) break;
    [along] = moved;
    run *= 2;
  }
  if (along < 0) return { along: tile.sizes.length - 1, run: 1 };
  const later = [...tile.offset.slice(log2(run)), ...tile.block];
  while (later.some((basis) => basis[along] % run)) run /= 2;
  return { along, run };
}

// Whether the plane consists of whole copies of an atom, each in one piece.
function isMadeOf(plane, shape, atom) {
  if (!plane.axes[0] && plane.axes[0] !== 0) return false;
  if (plane.shape.some((size, i) => size % shape[i])) return false;
  const own = invert([atom], shape);
  return plane.axes.every((axis, i) => plane.inverse[axis].every(([offset, block], bit) =>
    (bit < log2(shape[i]) ? offset === own[i][bit][0] && !block : offset % product(shape) === 0)));
}

// What the page shows of a tile: two of its dimensions, the others as in `point`.
function planeOf(tile) {
  const { along, run } = contiguousRun(tile), rank = tile.sizes.length;
  const first = rank > 1 && along < rank - 2 ? along : rank - 2;
  const axes = rank > 1 ? [first, rank - 1] : [null, 0];
  const shape = axes.map((axis) => (axis === null ? 1 : tile.sizes[axis]));
  const isDown = along === axes[0], cell = isDown ? [run, 1] : along === axes[1] ? [1, run] : [1, 1];
  const plane = { ...tile, axes, shape, cell, down: isDown && run > 1, run: cell[0] * cell[1] };
  plane.inverse = invert([tile.offset, tile.block], tile.sizes);
  plane.place = (point) => {
    const found = [0, 0];
    point.forEach((value, dim) => xorBases(plane.inverse[dim], value, found));
    return { offset: found[0], block: found[1] };
  };
  plane.point = (offset, block) => xorBases(tile.block, block, xorBases(tile.offset, offset, tile.sizes.map(() => 0)));
  plane.byte = (offset) => Math.floor((offset * tile.bits) / 8);
  plane.pair = (point) => axes.map((axis) => (axis === null ? 0 : point[axis]));
  plane.at = ([row, column], point) => point.map((value, dim) => (dim === axes[1] ? column : dim === axes[0] ? row : value));
  const atomBases = tile.atom && tile.atom.bases.map(([row, column]) => (tile.atom.transposed ? [column, row] : [row, column]));
  const atomShape = atomBases && [0, 1].map((dim) => extent(atomBases, dim));
  plane.atomShape = atomShape && isMadeOf(plane, atomShape, atomBases) ? atomShape : null;
  const divides = (part) => (part && part.every((size, i) => shape[i] % size === 0) ? part : null);
  const whole = plane.run * tile.bits === 8 * CHUNK;
  plane.unit = whole ? divides(plane.down ? [run, ATOM_ROWS] : [ATOM_ROWS, run]) : null;
  plane.instruction = plane.atomShape ? divides([DATA.mmaRows, (8 * DATA.instructionBytes) / tile.bits]) : null;
  plane.window = plane.atomShape || [[ATOM_ROWS, LINE / CHUNK], [LINE / CHUNK, ATOM_ROWS]][plane.down ? 1 : 0].map((count, i) => Math.min(shape[i], count * cell[i]));
  plane.drawn = drawnPart(plane);
  const perBlock = plane.inverse.map((bases, dim) => tile.sizes[dim] / 2 ** bases.filter(([, block]) => block).length);
  plane.blockPart = tile.block.length ? axes.map((axis) => (axis === null ? 1 : perBlock[axis])) : null;
  // Which 8x16B subtile of the window a cell belongs to: its place along the contiguous dimension.
  plane.fill = ([row, column]) => fillOf(plane.down ? (row % plane.window[0]) / cell[0] : (column % plane.window[1]) / cell[1]);
  plane.line = ([row, column]) => (plane.down ? column % plane.window[1] : row % plane.window[0]);
  plane.cells = ([top, left], [height, width]) => {
    const found = [];
    for (let row = top; row < top + height; row += cell[0])
      for (let column = left; column < left + width; column += cell[1]) found.push([row, column]);
    return found;
  };
  plane.start = (pair, part) => pair.map((value, i) => down(value, part[i]));
  // Cells of the window are numbered along the contiguous dimension first.
  plane.number = (pair) => {
    const [i, j] = pair.map((value, dim) => (value % plane.window[dim]) / cell[dim]);
    return plane.down ? j * (plane.window[0] / cell[0]) + i : i * (plane.window[1] / cell[1]) + j;
  };
  // The 8 chunks that the tensor core reads together, or the cell alone.
  plane.peers = (pair) => (plane.unit ? plane.cells(plane.start(pair, plane.unit), plane.unit) : [pair]);
  return plane;
}
// The part of the tile that is drawn: the first rows, or columns if memory runs down.
function drawnPart({ shape, cell, down: isDown }) {
  let [rows, columns] = shape;
  const limit = MAX_DRAWN_CELLS * cell[0] * cell[1];
  while (rows * columns > limit && rows > cell[0] && !isDown) rows /= 2;
  while (rows * columns > limit && columns > cell[1]) columns /= 2;
  while (rows * columns > limit) rows /= 2;
  return [rows, columns];
}

// The pictures of one tile in `root`; `onSelect(point)` is told which element is pointed at.
function planeView(root, onSelect) {
  const names = ["tile", "atom", "memory", "banks"].filter((name) => $(`[data-view="${name}"]`, root));
  const view = Object.fromEntries(names.map((name) => [name, $(`[data-view="${name}"]`, root)]));
  let plane, point, shownWindow = "", drawn = {}, shownLeading = "";

  const cellOf = (pair) => plane.start(pair, plane.cell);
  const placeOf = (pair) => plane.place(plane.at(pair, point));
  const byteAt = (pair) => plane.byte(placeOf(pair).offset);

  function start(name, width, height) {
    drawn[name] = new Map();
    return begin(view[name], width, height, name === "tile" ? 1.6 : 2.2, name === "tile" ? 0.6 : 0.72);
  }
  function drawCell(name, pair, x, y, width, height, fill, more = {}) {
    const rect = cellBox(view[name], x, y, width, height, fill, "", { row: pair[0], column: pair[1], ...more });
    drawn[name].set(keyOf(pair), [...(drawn[name].get(keyOf(pair)) || []), { rect, x, y, width, height }]);
  }
  function drawTile() {
    if (!view.tile) return;
    const [rows, columns] = plane.drawn, [height, width] = plane.cell, left = 30, top = plane.blockPart ? 30 : 18;
    const size = plane.run === 1 ? { x: 9, y: 9 } : plane.down ? { x: 7, y: 18 } : { x: 18, y: 7 };
    const x = (column) => left + (Math.min(column, columns) / width) * size.x, y = (row) => top + (Math.min(row, rows) / height) * size.y;
    const svg = start("tile", x(columns) + 4, y(rows) + 4);
    for (const pair of plane.cells([0, 0], plane.drawn)) drawCell("tile", pair, x(pair[1]), y(pair[0]), size.x, size.y, plane.fill(pair));
    const grid = (part, kind, each = () => {}) => {
      if (!part) return;
      for (let row = 0; row < rows; row += part[0])
        for (let column = 0; column < columns; column += part[1]) {
          outline(svg, x(column), y(row), x(column + part[1]) - x(column), y(row + part[0]) - y(row), kind);
          each([row, column]);
        }
    };
    grid(plane.atomShape, "atom-outline");
    if (plane.instruction) grid(plane.instruction, "instruction-outline");
    grid(plane.blockPart, "block-outline", (pair) => {
      const part = `block ${placeOf(pair).block}`, wide = x(pair[1] + plane.blockPart[1]) - x(pair[1]);
      const tag = add(svg, "g", { class: "block-tag" });
      add(tag, "rect", { x: x(pair[1]) + 2, y: y(pair[0]) + 2, width: Math.min(wide - 4, 50), height: 15 });
      label(tag, x(pair[1]) + 2 + Math.min(wide - 4, 50) / 2, y(pair[0]) + 9.5, wide < 50 ? placeOf(pair).block : part, "tag");
    });
    const ticks = (extent_, part, place, spacing) => {
      let last = -Infinity;
      for (let value = 0; value < extent_; value += part) {
        if (place(value) - last < spacing) continue;
        last = place(value);
        if (spacing > 20) label(svg, last + 2, 9, value, "axis edge start"); else label(svg, left - 16, last + 6, value, "axis edge");
      }
    };
    ticks(columns, plane.window[1], x, 34);
    ticks(rows, Math.min(plane.window[0], plane.shape[0]), y, 15);
    drawn.tile.x = x; drawn.tile.y = y;
  }
  function drawWindow() {
    const from = plane.start(plane.pair(point), plane.window), cells = plane.cells(from, plane.window);
    const wide = plane.window[1] / plane.cell[1], tall = plane.window[0] / plane.cell[0];
    if (view.atom) {
      const cw = 40, ch = tall > 8 ? 20 : 26, left = 40, top = 20, svg = start("atom", left + wide * cw + 4, top + tall * ch + 4);
      cells.forEach((pair, n) => {
        const x = left + (n % wide) * cw, y = top + Math.floor(n / wide) * ch;
        drawCell("atom", pair, x, y, cw, ch, plane.fill(pair), { chunk: plane.number(pair) });
        label(svg, x + cw / 2, y + ch / 2, plane.number(pair), "inside");
        if (n < wide) label(svg, x + cw / 2, 10, pair[1]);
        if (n % wide === 0) label(svg, left - 16, y + ch / 2, pair[0]);
      });
    }
    drawMemory(cells);
  }
  function drawMemory(cells) {
    if (!view.memory) return;
    const found = cells.map((pair) => ({ pair, byte: byteAt(pair) }));
    const lines = [...new Set(found.map((one) => Math.floor(one.byte / LINE)))].sort((a, b) => a - b);
    const perByte = 320 / LINE, ch = 24, bh = 14, left = 44, top = 20, cellBytes = (plane.run * plane.bits) / 8;
    const memory = start("memory", left + LINE * perByte + 4, top + lines.length * ch + 4);
    const banks = view.banks && start("banks", left + LINE * perByte + 4, top + lines.length * bh + 4);
    for (const { pair, byte } of found) {
      const line = lines.indexOf(Math.floor(byte / LINE)), x = left + (byte % LINE) * perByte, width = cellBytes * perByte;
      drawCell("memory", pair, x, top + line * ch, width, ch, plane.fill(pair), { chunk: plane.number(pair), byte });
      if (width > 18) label(memory, x + width / 2, top + (line + 0.5) * ch, plane.number(pair), "inside");
      for (let within = 0; banks && within < cellBytes; within += Math.min(BANK, cellBytes))
        drawCell("banks", pair, x + within * perByte, top + line * bh, Math.min(BANK, cellBytes) * perByte, bh, fillOf(plane.line(pair)),
          { bank: Math.floor(((byte + within) % LINE) / BANK), within });
    }
    for (let bank = 0; bank < BANKS; bank += CHUNK / BANK)
      label(memory, left + (bank * BANK + CHUNK / 2) * perByte, 10, `${bank}-${bank + CHUNK / BANK - 1}`);
    for (let bank = 0; banks && bank < BANKS; bank += 2) label(banks, left + (bank + 0.5) * BANK * perByte, 10, bank);
    lines.forEach((line, i) => {
      label(memory, left - 22, top + (i + 0.5) * ch, line * LINE);
      if (banks) label(banks, left - 22, top + (i + 0.5) * bh, line * LINE);
    });
  }
  function drawElements() {
    const box = $(".chunk-elements", root);
    if (!box) return;
    box.replaceChildren(...Array.from({ length: plane.run }, (_, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.index = index;
      return button;
    }));
  }
  function drawBases() {
    const list = $(".bases-list", root);
    if (!list) return;
    list.style.setProperty("--basis", `${16 + 4 * plane.sizes.length}ch`);
    list.replaceChildren(...["offset", "block"].flatMap((name) => plane[name].map((basis, bit) => {
      const item = document.createElement("li");
      item.textContent = `${name}=${2 ** bit} → (${basis.join(", ")})`;
      item.dataset.name = name;
      item.dataset.bit = bit;
      return item;
    })));
  }

  function mark(name, pair, peers) {
    const svg = view[name];
    $$(".peer, .cursor, .window-outline", svg).forEach((node) => node.remove());
    if (name === "tile") {
      const from = plane.start(pair, plane.window), { x, y } = drawn.tile;
      if (from.every((value, i) => value < plane.drawn[i]))
        outline(svg, x(from[1]), y(from[0]), x(from[1] + plane.window[1]) - x(from[1]), y(from[0] + plane.window[0]) - y(from[0]), "window-outline");
    } else for (const peer of peers) ring(name, peer, "peer");
    ring(name, pair, "cursor");
    focusable(svg, drawn[name].get(keyOf(pair))?.[0].rect);
  }
  function ring(name, pair, kind) {
    const parts = drawn[name].get(keyOf(pair));
    if (!parts) return;
    const x = Math.min(...parts.map((part) => part.x)), right = Math.max(...parts.map((part) => part.x + part.width));
    add(view[name], "rect", { class: kind, x, y: parts[0].y, width: right - x, height: parts[0].height });
  }
  function select(next) {
    point = next;
    const pair = plane.pair(point), leading = keyOf(plane.at([0, 0], point));
    if (leading !== shownLeading) {
      shownLeading = leading;
      shownWindow = "";
      drawTile();
    }
    const cell = cellOf(pair), window_ = keyOf(plane.start(pair, plane.window));
    if (window_ !== shownWindow) {
      shownWindow = window_;
      drawWindow();
    }
    const peers = plane.peers(cell);
    names.forEach((name) => mark(name, cell, peers));
    describe(pair, cell, peers);
  }
  function describe(pair, cell, peers) {
    const { offset, block } = plane.place(point), byte = plane.byte(offset);
    const part = (shape) => {
      if (!shape) return "none";
      const from = plane.start(pair, shape);
      return `(${from.map((value, i) => value / shape[i]).join(", ")}) at ${byteAt(from)} B`;
    };
    const access = warpAccess(peers.map(byteAt), CHUNK);
    sayAll(root, {
      coordinate: `(${point.join(", ")})`,
      offset: `${offset}${plane.block.length ? ` (block ${block})` : ""}`,
      byte: `${byte} (${hex(byte, 1)})`,
      bank: `${Math.floor((byte % LINE) / BANK)}`,
      chunk: `${plane.number(cell)}`,
      slot: `${Math.floor(byte / CHUNK)}, line ${Math.floor(byte / LINE)}`,
      atom: part(plane.atomShape), unit: part(plane.unit), instruction: part(plane.instruction),
      wavefronts: !plane.unit ? "-" : access.degree === 1 ? "1: no conflict" : `${access.wavefronts}: ${access.degree}-way conflict`,
      "elements-note": `${plane.run} elements of ${plane.bits} bits, by their ${plane.names[plane.axes[plane.down ? 0 : 1]]}`,
    });
    const box = $(".chunk-elements", root), first = placeOf(cell).offset;
    if (box) {
      box.style.setProperty("--cell-fill", `var(--${plane.fill(cell)})`);
      [...box.children].forEach((button, index) => {
        const on = first + index === offset;
        button.textContent = cell[plane.down ? 0 : 1] + index;
        button.classList.toggle("on", on);
        button.tabIndex = on ? 0 : -1;
        button.setAttribute("aria-label", `offset ${first + index}`);
      });
    }
    $$(".bases-list li", root).forEach((item) => {
      const value = item.dataset.name === "offset" ? offset : block;
      item.classList.toggle("on", Boolean((value >> Number(item.dataset.bit)) & 1));
    });
  }

  // The element under the pointer: a cell shows its elements side by side.
  function pointed(name, rect, event) {
    const pair = [Number(rect.dataset.row), Number(rect.dataset.column)], box = rect.getBoundingClientRect();
    const share = { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
    if (name === "tile" || name === "atom") {
      if (plane.down) pair[0] += clamp(share.y * plane.run, plane.run); else pair[1] += clamp(share.x * plane.run, plane.run);
      return plane.at(pair, point);
    }
    const { offset, block } = placeOf(pair), parts = name === "banks" ? Math.max(1, Math.min(plane.run, (8 * BANK) / plane.bits)) : plane.run;
    const index = Math.floor((8 * Number(rect.dataset.within || 0)) / plane.bits) + clamp(share.x * parts, parts);
    return plane.point(offset + index, block);
  }
  const inside = (pair) => pair.every((value, i) => value >= 0 && value < plane.drawn[i]);
  function moved(name, [dy, dx]) {
    const [row, column] = cellOf(plane.pair(point));
    if (name === "tile" || name === "atom") {
      const pair = [row + dy * plane.cell[0], column + dx * plane.cell[1]];
      return inside(pair) ? plane.at(pair, point) : null;
    }
    const { offset, block } = placeOf([row, column]), next = offset + dx * plane.run + dy * ((8 * LINE) / plane.bits);
    return next < 0 || next >= 2 ** plane.offset.length ? null : plane.point(next, block);
  }
  const speakField = (name) => $(`[data-field="${name}"]`, root)?.textContent;
  const spoken = () => speak(`element ${speakField("coordinate")}, offset ${speakField("offset")}, byte ${speakField("byte")}, bank ${speakField("bank")}`);
  const told = (next) => { if (next && keyOf(next) !== keyOf(point) && inside(plane.pair(next))) onSelect(next); };
  for (const name of names) {
    for (const kind of ["pointermove", "pointerdown"])
      view[name].addEventListener(kind, (event) => { if (event.target.classList.contains("cell")) told(pointed(name, event.target, event)); });
    view[name].addEventListener("keydown", (event) => {
      if (!(event.key in ARROWS)) return;
      event.preventDefault();
      told(moved(name, ARROWS[event.key]));
      drawn[name].get(keyOf(cellOf(plane.pair(point))))?.[0].rect.focus({ preventScroll: name !== "tile" });
      spoken();
    });
  }
  // Not on the views themselves: a browser takes an SVG that listens to focus for a Tab stop.
  root.addEventListener("focusin", (event) => { if (event.target.matches(".cell:focus-visible")) spoken(); });
  const elements = $(".chunk-elements", root);
  const choose = (index) => {
    const pair = cellOf(plane.pair(point));
    pair[plane.down ? 0 : 1] += index;
    told(plane.at(pair, point));
  };
  for (const kind of elements ? ["pointerover", "click"] : [])
    elements.addEventListener(kind, (event) => { if (event.target.dataset.index) choose(Number(event.target.dataset.index)); });
  elements?.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS) || !event.target.dataset.index) return;
    event.preventDefault();
    const [dy, dx] = ARROWS[event.key], index = Number(event.target.dataset.index) + dx + dy;
    if (index < 0 || index >= plane.run) return;
    choose(index);
    elements.children[index].focus();
    spoken();
  });

  return {
    // Shows a tile, with `wanted` selected if it has such an element.
    show(tile, wanted) {
      plane = planeOf(tile);
      point = tile.sizes.map(() => 0);
      [shownWindow, shownLeading, drawn] = ["", "", {}];
      const [rowName, columnName] = plane.axes.map((axis) => (axis === null ? "" : plane.names[axis]));
      const cut = plane.drawn.some((size, i) => size < plane.shape[i]);
      sayAll(root, {
        title: plane.title,
        "tile-note": `${rowName ? `${rowName} down, ` : ""}${columnName} across${cut ? `; cut: the first ${plane.drawn.join("x")}` : ""}`,
        "window-name": plane.atomShape ? "Atom" : "Part of the tile",
        "window-axes": `${plane.window.join("x")} elements, chunks of ${(plane.run * plane.bits) / 8} bytes`,
        "banks-note": `of ${BANK} bytes, coloured by ${plane.down ? columnName : rowName || columnName}`,
        "tile-legend": plane.atomShape ? "A colour is one 8x16B subtile of the atom: a swizzle puts its 8 chunks in 8 different groups of banks."
          : "A colour is a place along the contiguous dimension. There is no swizzle atom in this layout: see the wavefronts for what its rows cost.",
      });
      for (const [kind, has] of [["atom", plane.atomShape], ["subtile", plane.instruction], ["block", plane.blockPart]])
        $$(`.key .${kind}-key`, root).forEach((node) => { node.hidden = !has; });
      root.classList.toggle("wide", plane.down);
      drawElements();
      drawBases();
      const fits = wanted && wanted.length === point.length && wanted.every((value, dim) => value < tile.sizes[dim]) && inside(plane.pair(wanted));
      select(fits ? wanted : point);
      return plane;
    },
    select(next) { select(next); },
    get point() { return point; },
  };
}
