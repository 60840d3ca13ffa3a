// The TMA copies of a tile, box by box: from the tensor in global memory to the lines of shared memory.

// What one block of the cluster copies: a tile of its own, and where in the whole it begins.
function partOf(tile, state, block) {
  const blocks = 2 ** tile.block.length;
  if (block < 0 || block >= blocks) throw new Error(`The block: 0 to ${blocks - 1}, the blocks of the cluster.`);
  if (!tile.block.length) return { own: tile, first: tile.sizes.map(() => 0) };
  const { perBlock } = cluster(readCluster(state.cga, tile.sizes.length), tile.sizes);
  const own = describedTile({ ...state, shape: perBlock.join("x"), swizzle: tile.swizzle ? `${tile.swizzle}` : "rows", cga: "" });
  return { own, first: xorBases(tile.block, block, tile.sizes.map(() => 0)) };
}

function tmaView(root) {
  const from = $("[data-view=tensor]", root), to = $("[data-view=filled]", root), slider = $(".steps", root), play = $(".play", root);
  let plane, boxes, steps, timer = 0;
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  const boxOf = (pair) => boxes.findIndex(({ within, shape }) => plane.axes.every((axis, i) => axis === null || (pair[i] >= within[axis] && pair[i] < within[axis] + shape[axis]))
    && within.every((first, dim) => plane.axes.includes(dim) || first === 0));
  const outOfBounds = (pair, box) => !plane.axes.every((axis, i) => {
    if (axis === null) return true;
    const at = pair[i] - box.within[axis];
    return at >= box.inside[axis][0] && at < box.inside[axis][1];
  });
  function draw() {
    const [rows, columns] = plane.drawn, [height, width] = plane.cell, zero = plane.sizes.map(() => 0);
    const size = plane.down ? [18, 7] : [7, 18], left = 30, top = 18;
    const x = (column) => left + (column / width) * size[1], y = (row) => top + (row / height) * size[0];
    begin(from, x(columns) + 4, y(rows) + 4, 1.3, 0.72);
    const cellBytes = (plane.run * plane.bits) / 8, found = plane.cells([0, 0], plane.drawn).map((pair) => {
      const number = boxOf(pair), byte = plane.byte(plane.place(plane.at(pair, zero)).offset);
      return { pair, number, byte, step: 0, outside: outOfBounds(pair, boxes[number]) };
    });
    // A step: up to 1 KiB of one box, what 8 lines of shared memory hold.
    const keys = [...new Set(found.map(({ number, byte }) => number * 2 ** 24 + Math.floor(byte / (8 * LINE))))].sort((a, b) => a - b);
    steps = keys.length;
    const stepOf = new Map(keys.map((key, i) => [key, i]));
    const { bytes, smemBytes } = boxes[0], columnsWide = LINE / CHUNK, boxLines = Math.max(1, smemBytes / LINE), gap = 10, tw = 18, th = 7;
    const drawnBoxes = [...new Set(found.map(({ number }) => number))].sort((a, b) => a - b), across = Math.min(drawnBoxes.length, 3);
    const place = (number) => drawnBoxes.indexOf(number);
    const boxX = (number) => left + 24 + (place(number) % across) * (columnsWide * tw + gap + 36), boxY = (number) => top + 4 + Math.floor(place(number) / across) * (boxLines * th + gap + 16);
    begin(to, left + 24 + across * (columnsWide * tw + gap + 36), boxY(drawnBoxes[drawnBoxes.length - 1]) + boxLines * th + 4, 1.3, 0.72);
    for (const one of found) {
      one.step = stepOf.get(one.number * 2 ** 24 + Math.floor(one.byte / (8 * LINE)));
      const { pair, number, byte } = one, inBox = byte - boxes[number].offset;
      const data = { row: pair[0], column: pair[1], byte, box: number, step: one.step }, kind = `${plane.fill(pair)}${one.outside ? " zero" : ""}`;
      cellBox(from, x(pair[1]), y(pair[0]), size[1], size[0], kind, "", data);
      cellBox(to, boxX(number) + ((inBox % LINE) / CHUNK) * tw, boxY(number) + Math.floor(inBox / LINE) * th, (cellBytes / CHUNK) * tw, th, kind, "", data);
    }
    drawnBoxes.forEach((number) => {
      const { within, shape, offset } = boxes[number], [row, column] = plane.axes.map((axis) => (axis === null ? 0 : within[axis]));
      const [tall, wide] = plane.axes.map((axis) => (axis === null ? 1 : shape[axis]));
      outline(from, x(column), y(row), Math.min(x(column + wide), x(columns)) - x(column), Math.min(y(row + tall), y(rows)) - y(row), "atom-outline");
      if (!row && wide < columns) label(from, (x(column) + Math.min(x(column + wide), x(columns))) / 2, 9, `box ${number}`, "field");
      if (!column && (row || wide >= columns)) label(from, left - 12, (y(row) + Math.min(y(row + tall), y(rows))) / 2, number, "field");
      outline(to, boxX(number), boxY(number), columnsWide * tw, boxLines * th, "atom-outline");
      label(to, boxX(number) + (columnsWide * tw) / 2, boxY(number) - 8, `box ${number}, from +${offset}`, "field");
      for (let line = 0; line < boxLines; line += Math.max(8, boxLines / 8)) label(to, boxX(number) - 18, boxY(number) + (line + 0.5) * th, offset + line * LINE);
    });
    slider.max = steps;
    const filled = boxes.reduce((sum, { shape, inside }) => sum + product(shape) - product(inside.map(([begin_, end]) => end - begin_)), 0);
    sayAll(root, {
      "tma-note": `${boxes.length} ${boxes.length === 1 ? "copy" : "copies"} of ${boxes[0].shape.join("x")}; the mbarrier expects ${boxes.length * bytes} bytes${filled ? `; ${filled} elements out of bounds become 0` : ""}`,
      "tensor-note": found.length * plane.run < product(plane.sizes) ? `cut: the first ${plane.drawn.join("x")}` : `${plane.sizes.join("x")} ${plane.fp4 ? "bytes, of two fp4 each" : "elements"}`,
    });
    $(".boxes tbody", root).replaceChildren(...boxes.map((box, i) => tableRow([i, `{${box.coordinates.join(", ")}}`, `+${box.offset}`, box.bytes], { box: i })));
  }
  function showStep(step) {
    slider.value = step;
    for (const svg of [from, to])
      $$(".cell", svg).forEach((rect) => {
        const own = Number(rect.dataset.step);
        rect.classList.toggle("waiting", own >= step);
        rect.classList.toggle("moving", own === step - 1 && step < steps);
      });
    const last = $$(`.cell[data-step="${Math.max(0, step - 1)}"]`, from)[0], number = last ? Number(last.dataset.box) : 0;
    $$(".boxes tr", root).forEach((line) => line.classList.toggle("on", Number(line.dataset.box) === number));
    say(root, "step", step === 0 ? "before the first copy" : step >= steps ? "all copies done" : `box ${number}, step ${step} of ${steps}`);
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }
  function start() {
    if (Number(slider.value) >= steps) showStep(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      showStep(Number(slider.value) + 1);
      if (Number(slider.value) >= steps) stop();
    }, Math.max(40, Math.min(400, 8000 / steps)));
  }
  play.addEventListener("click", () => (timer ? stop() : start()));
  slider.addEventListener("input", () => { stop(); showStep(Number(slider.value)); });
  function choose({ dataset }) {
    const pair = [Number(dataset.row), Number(dataset.column)], box = boxes[Number(dataset.box)], byte = Number(dataset.byte);
    const point = plane.at(pair, plane.sizes.map(() => 0)), outside = outOfBounds(pair, box);
    const global_ = point.map((value, dim) => value - box.within[dim] + box.first[dim]);
    for (const svg of [from, to]) ringCells(svg, (data) => data.byte === dataset.byte);
    sayAll(root, {
      "moved-element": `(${point.join(", ")})`, "moved-global": `(${global_.join(", ")})${outside ? ": zero" : ""}`, "moved-address": outside ? "-" : hex(box.globalAt(global_), 1),
      "moved-box": dataset.box, "moved-byte": `${byte} (${hex(byte, 1)})`, "moved-bank": `${Math.floor((byte % LINE) / BANK)}`,
    });
    speak(`element ${point.join(", ")}, box ${dataset.box}, byte ${byte}`);
  }
  choosing(from, choose);
  choosing(to, choose);
  return {
    show(tile, state) {
      stop();
      if (tile.given) throw new Error("TMA copies are drawn for the tiles that the controls describe.");
      const numbers = (text, otherwise) => (text.trim() ? text : otherwise.join(",")).split(/[x×,]/).map(Number);
      const tensor = numbers(state.tensor, tile.sizes), at = numbers(state.start_at, tile.sizes.map(() => 0));
      const strides = state.strides.trim() ? numbers(state.strides, []) : null, address = Number(state.address || 0), block = Number(state.cta || 0);
      if (![...tensor, ...at, ...(strides || []), address, block].every(Number.isSafeInteger) || tensor.some((size) => size < 1) || address < 0) throw new Error("The tensor as 4096x4096, the start and strides as 4096,1, the address as 0x7f00.");
      const { own, first } = partOf(tile, state, block);
      boxes = tmaBoxes(own, tensor, at.map((value, dim) => value + first[dim]), strides, address);
      plane = planeOf(own);
      draw();
      choose($(".cell", from));
      showStep(steps);
      if (!still.matches) start();
    },
    hide: stop,
  };
}
