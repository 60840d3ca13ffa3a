// A matrix in Blackwell's tensor memory: 128 lanes by columns of 32 bits, and who loads what.

function tmemView(root) {
  const svg = $("[data-view=tensor-memory]", root), load = $("[data-view=load]", root);
  let matrix, transfer, cell, holders;

  const free = (bases) => bases.reduce((mask, basis, bit) => (basis.some(Boolean) ? mask : mask | (2 ** bit)), 0);
  const elementAt = (lane, column, slot) => [["lane", lane], ["column", column], ["slot", slot], ["block", 0]]
    .reduce((into, [name, value]) => xorBases(matrix.bases[name] || [], value, into), [0, 0]);
  const isHole = (lane, column) => Boolean((lane & free(matrix.bases.lane.slice(0, 5))) || (column & free(matrix.bases.column)));
  const isCopy = (lane) => Boolean(lane & free(matrix.bases.lane) & ~31);

  // A cell of the picture: 8 lanes by so many columns.
  const stepOf = () => Math.max(1, 2 ** (matrix.bases.column.length - 3));

  function draw() {
    const columns = 2 ** matrix.bases.column.length, step = stepOf(), left = 36, top = 20, cw = 58, ch = 5, lanes = 8;
    begin(svg, left + (columns / step) * cw + 4, top + 128 * ch + 4, 1.2);
    for (let lane = 0; lane < 128; lane += lanes)
      for (let column = 0; column < columns; column += step) {
        const hole = isHole(lane, column), first = elementAt(lane, column, 0);
        const kind = hole ? "unused" : isCopy(lane) ? `${fillOf(first[0] / lanes)} copy` : fillOf(first[0] / lanes);
        cellBox(svg, left + (column / step) * cw, top + lane * ch, cw, lanes * ch, kind, hole ? "" : `${first.join(",")}`, { lane, column });
      }
    for (let lane = 0; lane < 128; lane += 8) label(svg, left - 16, top + (lane + 4) * ch, lane, lane % 32 ? "axis" : "axis field");
    for (let warp = 0; warp < 4; warp += 1) outline(svg, left, top + 32 * warp * ch, (columns / step) * cw, 32 * ch, "block-outline");
    for (let column = 0; column < columns; column += step) label(svg, left + (column / step) * cw + 2, 10, column, "axis start");
    say(root, "tmem-note", `${matrix.about}; a cell: 8 lanes x ${step} column${step > 1 ? "s" : ""}, with its first (row, column)`);
  }
  // The warp's lanes, in the first columns, with the thread and register that hold each cell.
  function drawLoad() {
    holders = new Map();
    $(".load-section", root).hidden = !transfer;
    say(root, "load-note", transfer ? transfer.instruction : "");
    if (!transfer) return;
    const at = (register, thread) => [["register", register], ["thread", thread]].reduce((into, [name, value]) => xorBases(transfer[name], value, into), [0, 0]);
    for (let register = 0; register < 2 ** transfer.register.length; register += 1)
      for (let thread = 0; thread < 32; thread += 1) {
        const key = keyOf(at(register, thread));
        if (!holders.has(key)) holders.set(key, [thread, register]);
      }
    const left = 36, top = 22, cw = 58, ch = 20, columns = Math.min(8, 2 ** matrix.bases.column.length);
    begin(load, left + columns * cw + 4, top + 32 * ch + 4, 1.2);
    for (let lane = 0; lane < 32; lane += 1) {
      label(load, left - 16, top + (lane + 0.5) * ch, lane);
      for (let column = 0; column < columns; column += 1) {
        const found = holders.get(`${lane},${column}`);
        cellBox(load, left + column * cw, top + lane * ch, cw, ch, found ? fillOf(found[0]) : "unused", found ? `T${found[0]} r${found[1]}` : "", { lane, column });
      }
    }
    for (let column = 0; column < columns; column += 1) label(load, left + (column + 0.5) * cw, 11, column);
  }
  function choose(lane, column, warp) {
    const found = elementAt(lane, column, 0), held = holders.get(`${lane % 32},${column}`), slots = 2 ** matrix.bases.slot.filter((basis) => basis.some(Boolean)).length;
    cell = { lane, column };
    $$(".cursor", svg).forEach((node) => node.remove());
    const own = $$(".cell", svg).filter((rect) => Number(rect.dataset.lane) <= lane && Number(rect.dataset.column) <= column).pop();
    if (own) add(svg, "rect", { class: "cursor", ...Object.fromEntries(["x", "y", "width", "height"].map((name) => [name, own.getAttribute(name)])) });
    ringCells(load, (data) => Boolean(held) && holders.get(`${data.lane},${data.column}`)?.[0] === held[0]);
    const last = elementAt(lane, column, slots - 1);
    sayAll(root, {
      "tmem-lane": `${lane}`, "tmem-column": `${column}`, "tmem-address": hex(lane * 65536 + column, 8), "tmem-warp": `${Math.floor(lane / 32)}`,
      "tmem-element": isHole(lane, column) ? "none" : `(${found.join(", ")})${slots > 1 ? ` to (${last.join(", ")})` : ""}${isCopy(lane) ? ", a copy" : ""}`,
      "tmem-held": held ? `thread ${held[0]}, register ${held[1]}` : "-",
    });
    speak(`lane ${lane}, column ${column}: element ${found.join(", ")}`);
  }
  const fine = (event, rect) => {
    const box = rect.getBoundingClientRect(), step = stepOf();
    const inside = (value, low, size, count) => (event ? clamp(((value - low) / size) * count, count) : 0);
    return [Number(rect.dataset.lane) + inside(event?.clientY, box.top, box.height, 8), Number(rect.dataset.column) + inside(event?.clientX, box.left, box.width, step)];
  };
  svg.addEventListener("pointermove", (event) => { if (event.target.classList.contains("cell")) choose(...fine(event, event.target)); });
  choosing(svg, (rect) => choose(...fine(null, rect)));
  choosing(load, ({ dataset }) => choose(32 * Math.floor(cell.lane / 32) + Number(dataset.lane), Number(dataset.column)));
  return {
    show(state) {
      const wanted = DATA.matrices.find((one) => one.name === state.matrix && (one.given || one.columns === Number(state.n)));
      if (!wanted) throw new Error(`No ${state.matrix} has ${state.n} columns of elements.`);
      matrix = wanted;
      const found = matrix.loads[state.load];
      transfer = typeof found === "object" ? found : null;
      draw();
      drawLoad();
      choose(0, 0);
      focusable(svg, $(".cell", svg));
      if (typeof found === "string") throw new Error(`tcgen05.ld.${state.load}: ${found}`);
      return { title: matrix.title, instruction: transfer?.instruction };
    },
  };
}
