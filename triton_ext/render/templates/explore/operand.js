// A matrix descriptor: its bits, what LBO and SBO step over, and that of each MMA subtile.

function bitsPicture(svg, value, width, fields) {
  const size = 26, high = 30, pitch = 66, rows = width / 32;
  begin(svg, 32 * size + 8, rows * pitch + 6, 1.4);
  const owner = Array.from({ length: width }, (_, bit) => fields.find(({ first, bits }) => bit >= first && bit < first + bits) || fields[fields.length - 1]);
  const corner = (bit) => [4 + ((width - 1 - bit) % 32) * size, 18 + Math.floor((width - 1 - bit) / 32) * pitch];
  for (let bit = width - 1; bit >= 0; bit -= 1) {
    const [x, y] = corner(bit), field = owner[bit], digit = Number((value >> BigInt(bit)) & 1n);
    cellBox(svg, x, y, size, high, `bit ${field.key === "reserved" ? "plain" : fillOf(field.fill)}`, digit, { bit, key: field.key });
    if (field.problem && (field.key !== "reserved" || digit)) outline(svg, x + 1, y + 1, size - 2, high - 2, "bad");
    const ends = bit % 32 === 31 || owner[bit + 1] !== field;
    if (ends || bit % 32 === 0 || owner[bit - 1] !== field) label(svg, x + size / 2, y + high + 9, bit);
    if (!ends || field.key === "reserved") continue;
    let run = 1;
    while (bit - run >= 0 && owner[bit - run] === field && (bit - run) % 32 !== 31) run += 1;
    if (field.name.length * 6 <= run * size) label(svg, x + (run * size) / 2, y - 8, field.name, "field");
  }
}
function fieldRows(body, fields) {
  body.replaceChildren(...fields.map((field) => {
    const row = document.createElement("tr"), last = field.first + field.bits - 1;
    row.dataset.key = field.key;
    row.tabIndex = 0;
    const swatch = `<span class="swatch ${field.key === "reserved" ? "plain" : fillOf(field.fill)}"></span>`;
    row.innerHTML = `<th scope="row">${swatch}</th><td></td><td></td><td></td>`;
    row.children[0].append(field.name);
    row.children[1].textContent = field.key === "reserved" ? "others" : field.bits === 1 ? `${last}` : `${last}-${field.first}`;
    row.children[2].textContent = hex(field.raw, 1);
    row.children[3].textContent = field.problem ? `${field.meaning}: ${field.problem}` : field.meaning;
    row.children[3].classList.toggle("wrong", Boolean(field.problem));
    return row;
  }));
}

function operandView(root, onSelect) {
  const tileView = planeView($(".operand-tile", root), onSelect);
  const bits = $("[data-view=bits]", root), parts = $("[data-view=parts]", root), list = $(".subtiles tbody", root);
  let plane, derived, state;

  function showValue(value, width, fields) {
    bitsPicture(bits, value, width, fields);
    fieldRows($(".fields tbody", root), fields);
    say(root, "value", hex(value, width / 4));
  }
  // What LBO and SBO step over, with the arrows between: chunks, or atoms if MN-major.
  function drawParts() {
    const { instruction, major, width } = derived, isK = major === "K";
    const rowElements = (8 * Math.max(CHUNK, width)) / plane.bits, chunk = (8 * CHUNK) / plane.bits;
    const part = isK ? [ATOM_ROWS, chunk] : [width ? rowElements : chunk, ATOM_ROWS];
    const counts = instruction.map((size, i) => Math.max(1, size / part[i])), drawn = counts.map((count) => Math.min(count, 8));
    const left = 50, top = 24, cw = 74, ch = 30, right = left + drawn[1] * cw, bottom = top + drawn[0] * ch;
    const svg = begin(parts, right + 120, bottom + 34, 1.3);
    for (let i = 0; i < drawn[0]; i += 1)
      for (let j = 0; j < drawn[1]; j += 1) {
        const pair = [i * part[0], j * part[1]], byte = plane.byte(plane.place(plane.at(pair, tileView.point.map(() => 0))).offset);
        cellBox(svg, left + j * cw, top + i * ch, cw, ch, fillOf(isK ? (byte % Math.max(CHUNK, width)) / CHUNK : i + j), `+${byte}`, { row: pair[0], column: pair[1] });
        if (!i) label(svg, left + (j + 0.5) * cw, 12, pair[1]);
        if (!j) label(svg, left - 20, top + (i + 0.5) * ch, pair[0]);
      }
    const lbo = ["LBO", derived.lbo, derived.usesLeading], sbo = ["SBO", derived.sbo, derived.usesStride];
    const [downwards, across] = !isK && width ? [lbo, sbo] : [sbo, lbo];
    const arrow = (x, y, toX, toY, used) => {
      add(svg, "path", { class: `arrow${used ? "" : " unused"}`, d: `M${x} ${y}L${toX} ${toY}` });
      const [dx, dy] = [Math.sign(toX - x), Math.sign(toY - y)];
      add(svg, "path", { class: "arrow", d: `M${toX} ${toY}L${toX - 7 * dx - 4 * dy} ${toY - 7 * dy - 4 * dx}L${toX - 7 * dx + 4 * dy} ${toY - 7 * dy + 4 * dx}Z` });
    };
    const words = ([name, value, used]) => (used ? `${name} ${value}` : `${name} not read`);
    if (counts[0] > 1) { arrow(right + 12, top + ch / 2, right + 12, top + 1.5 * ch, downwards[2]); label(svg, right + 22, top + ch, words(downwards), "field start"); }
    if (counts[1] > 1) { arrow(left + cw / 2, bottom + 14, left + 1.5 * cw, bottom + 14, across[2]); label(svg, left + 1.5 * cw + 10, bottom + 14, words(across), "field start"); }
    say(root, "parts-note", `the first ${instruction.join("x")}, read by one instruction: ${counts.join("x")} ${isK ? "chunks of 8x16 bytes" : width ? "atoms" : "core matrices"}${drawn.some((count, i) => count < counts[i]) ? "; cut" : ""}`);
  }
  function listSubtiles() {
    list.replaceChildren(...derived.advances.flatMap((row, i) => row.map((advance, j) =>
      tableRow([`(${i}, ${j})`, `+${advance}`, hex(derived.encoded(Number(state.start) + advance), 16)], { subtile: `${i},${j}` }))));
    for (const line of list.children) line.tabIndex = 0;
  }
  function showSubtile(i, j) {
    const start = Number(state.start) + derived.advances[i][j], value = derived.encoded(start);
    showValue(value, 64, decodeFields(value, state.arch));
    say(root, "value-note", `MMA subtile (${i}, ${j}): start address ${start} bytes`);
    $$(".subtiles tr", root).forEach((line) => line.classList.toggle("on", line.dataset.subtile === `${i},${j}`));
  }
  function ofPoint(point) {
    const [i, j] = plane.pair(point).map((value, dim) => Math.floor(value / derived.instruction[dim]));
    if (i < derived.advances.length && j < derived.advances[0].length) showSubtile(i, j);
  }
  function mark(event) {
    const key = event.target.closest("[data-key]")?.dataset.key;
    $$("[data-key]", root).forEach((node) => node.classList.toggle("on", node.dataset.key === key));
    const line = event.target.closest("[data-subtile]");
    if (line) showSubtile(...line.dataset.subtile.split(",").map(Number));
  }
  for (const kind of ["pointerover", "focusin"]) root.addEventListener(kind, mark);
  choosing(bits, (rect) => speak(`bit ${rect.dataset.bit}, ${rect.dataset.key}`));
  choosing(parts, (rect) => speak(`row ${rect.dataset.row}, column ${rect.dataset.column}`));

  return {
    show(tile, wanted, point) {
      state = wanted;
      const typed = Boolean(state.value);
      $$(".of-tile", root).forEach((node) => { node.hidden = typed; });
      if (typed) {
        const width = DATA.instruction ? 32 : 64;
        if (!/^(0x[0-9a-f]{1,16}|\d{1,20})$/i.test(state.value.trim()) || BigInt(state.value.trim()) >> BigInt(width)) throw new Error(`The descriptor ${state.value}: a number of ${width} bits, such as 0x4000404000010000.`);
        const value = BigInt(state.value.trim()), own = DATA.instruction && BigInt(DATA.instruction.value) === value;
        const fields = own ? DATA.instruction.fields : decodeFields(value, state.arch);
        const faults = fields.filter((field) => field.problem).length;
        showValue(value, own ? 32 : 64, fields);
        say(root, "value-note", `${own ? `instruction descriptor, kind::${DATA.instruction.kind}` : `matrix descriptor on sm_${state.arch}`}: ${faults || "no"} illegal field${faults === 1 ? "" : "s"}`);
        return;
      }
      if (tile.sizes.length !== 2) throw new Error("A matrix descriptor is for two dimensions.");
      if (tile.bits > 32 || tile.fp4) throw new Error("A matrix descriptor is derived for 8, 16 or 32 bits.");
      plane = tileView.show(tile, point);
      const bytes = tile.bits / 8, within = plane.inverse.map((bases) => bases.filter(([, block]) => !block).map(([offset]) => offset * bytes));
      const perBlock = within.map((bases) => 2 ** bases.length);
      const instruction = state.instr ? readShape(state.instr) : [Math.min(DATA.mmaRows, perBlock[0]), (8 * DATA.instructionBytes) / tile.bits];
      if (instruction.length !== 2) throw new Error("The instruction: M or N, then K, such as 64x16.");
      if (!(Number(state.start) >= 0) || Number(state.start) % 16) throw new Error("The start address must be a multiple of 16 bytes.");
      derived = deriveOperand(within[0], within[1], bytes, perBlock, instruction, state.arch, Number(state.start));
      drawParts();
      listSubtiles();
      ofPoint(tileView.point);
    },
    select(point) { if (!state.value) { tileView.select(point); ofPoint(point); } },
    get point() { return tileView.point; },
  };
}
