// One access of a warp: which lane reads which word of which bank, and what collides.

const MAX_LINES = 64;

function banksView(root, onSelect) {
  const tile = planeView($(".access-tile", root), onSelect), svg = $("[data-view=access]", root);
  let plane, shown;

  function elementsOf(state) {
    if (state.offsets) {
      const offsets = state.offsets.split(",").map((one) => (one.trim() === "-" ? null : Number(one)));
      const bytes = Number(state.width);
      if (!offsets.every((one) => one === null || (Number.isInteger(one) && one >= 0 && one % bytes === 0)) || offsets.length > 32 || offsets.every((one) => one === null))
        throw new Error(`Offsets: at most 32 multiples of ${bytes}, such as 0,128,256; - for an inactive lane.`);
      return { bytes, offsets, elements: null };
    }
    const { bytes, elements, outside } = laneElements(plane, state.access, plane.pair(tile.point));
    if (outside && !state.access.includes("shared")) throw new Error("The access leaves the tile here.");
    return { bytes, elements, offsets: elements.map((pair) => plane.byte(plane.place(plane.at(pair, tile.point)).offset)) };
  }
  function draw(state) {
    shown = elementsOf(state);
    const report = warpAccess(shown.offsets, shown.bytes);
    const lines = [...new Set([...report.lanesOf.keys()].map((word) => Math.floor(word / BANKS)))].sort((a, b) => a - b);
    const left = 48, top = 22, size = 24, drawn = lines.slice(0, MAX_LINES);
    begin(svg, left + BANKS * size + 4, top + drawn.length * size + 4, 1.3);
    drawn.forEach((line, i) => {
      add(svg, "rect", { class: "plain", x: left, y: top + i * size, width: BANKS * size, height: size });
      label(svg, left - 24, top + (i + 0.5) * size, line * LINE);
      for (let bank = 0; bank < BANKS; bank += 1) {
        const lanes = report.lanesOf.get(line * BANKS + bank);
        if (!lanes) continue;
        const group = Math.floor(lanes[0] / report.together), several = report.ideal > 1;
        cellBox(svg, left + bank * size, top + i * size, size, size, fillOf(several ? group : lanes[0]), lanes.length > 1 ? `${lanes[0]}+` : lanes[0], { word: line * BANKS + bank, lanes: lanes.join(" ") });
        if (report.collide.has(line * BANKS + bank)) outline(svg, left + bank * size + 1.5, top + i * size + 1.5, size - 3, size - 3, "bad");
      }
    });
    for (let bank = 0; bank < BANKS; bank += 1) label(svg, left + (bank + 0.5) * size, 11, bank);
    outline(svg, left, 2, size, top + drawn.length * size - 1, "bank-column");
    const words = wavefrontWords(report);
    sayAll(root, {
      "access-report": words, "access-note": `${shown.bytes} bytes a lane; ${report.together === 32 ? "all lanes" : `${report.together} lanes`} at a time${drawn.length < lines.length ? `; cut: ${drawn.length} of ${lines.length} lines` : ""}`,
      "access-key": report.ideal > 1 ? `A number is a lane; a colour, the ${report.together} lanes that are served together; a red frame, words that collide.` : "A number is a lane; a red frame, words that collide in their bank.",
    });
    $("[data-field=access-report]", root).classList.toggle("wrong", report.degree > 1);
    const read = new Set((shown.elements || []).map((pair) => keyOf(plane.start(pair, plane.cell))));
    ringCells($("[data-view=tile]", root), ({ row, column }) => read.has(`${row},${column}`));
    describe($(".cell", svg));
  }
  function describe(rect) {
    const word = Number(rect.dataset.word), lanes = rect.dataset.lanes.split(" ").map(Number);
    const [lane] = lanes, bank = word % BANKS, pair = shown.elements?.[lane];
    ringCells(svg, (data) => data.lanes.split(" ").some((one) => lanes.includes(Number(one))));
    $(".bank-column", svg).setAttribute("x", 48 + bank * 24);
    focusable(svg, rect);
    sayAll(root, {
      lane: lanes.join(", "), "lane-bank": `${bank}`, "lane-byte": `${word * BANK} (${hex(word * BANK, 1)})`,
      "lane-start": `${shown.offsets[lane]}`, "lane-element": pair ? `(${plane.at(pair, tile.point).join(", ")})` : "-",
    });
    speak(`lane ${lanes.join(", ")}, bank ${bank}, byte ${word * BANK}`);
  }
  choosing(svg, describe);
  return {
    show(shownTile, state, point) {
      $(".access-tile", root).hidden = Boolean(state.offsets);
      plane = tile.show(shownTile, point);
      draw(state);
    },
    select(point, state) { tile.select(point); draw(state); },
    get point() { return tile.point; },
  };
}
