// Which lane of a warp holds which element of a matrix, in which register.

function fragmentView(root) {
  const svg = $("[data-view=fragment]", root), lanes = $("[data-view=lanes]", root), body = $(".registers tbody", root);
  let fragment;

  // (row, column) of a part of a register of a lane.
  const element = (part, register, lane) => [["part", part], ["register", register], ["thread", lane]]
    .reduce((into, [name, value]) => xorBases(fragment[name], value, into), [0, 0]);
  const every = (lane) => Array.from({ length: 2 ** fragment.register.length }, (_, register) =>
    Array.from({ length: 2 ** fragment.part.length }, (__, part) => element(part, register, lane)));

  function draw() {
    const [rows, columns] = fragment.shape, shownColumns = Math.min(columns, 64), size = [46, 24], left = 36, top = 22;
    begin(svg, left + shownColumns * size[0] + 4, top + rows * size[1] + 4, 1.4);
    for (let lane = 0; lane < 32; lane += 1)
      every(lane).forEach((parts, register) => parts.forEach(([row, column], part) => {
        if (column >= shownColumns) return;
        const rect = cellBox(svg, left + column * size[0], top + row * size[1], size[0], size[1], fillOf(lane), `T${lane} r${register}`, { lane, register, part, row, column });
        rect.classList.add(`lane${lane}`);
      }));
    for (let row = 0; row < rows; row += 1) label(svg, left - 16, top + (row + 0.5) * size[1], row);
    for (let column = 0; column < shownColumns; column += 1) label(svg, left + (column + 0.5) * size[0], 11, column);
    begin(lanes, 8 * 40 + 2, 4 * 28 + 2, 1);
    for (let lane = 0; lane < 32; lane += 1) cellBox(lanes, 1 + (lane % 8) * 40, 1 + Math.floor(lane / 8) * 28, 40, 28, fillOf(lane), `T${lane}`, { lane });
    say(root, "fragment-note", `${fragment.names.join(" down, ")} across${shownColumns < columns ? `; cut: the first ${shownColumns} of ${columns} columns` : ""}`);
    say(root, "fragment-about", fragment.about);
  }
  function choose(lane, register, part) {
    const held = every(lane), [row, column] = held[register][part];
    for (const picture of [svg, lanes]) ringCells(picture, (data) => Number(data.lane) === lane);
    focusable(lanes, $$(".cell", lanes)[lane]);
    focusable(svg, $(`.cell[data-row="${row}"][data-column="${column}"]`, svg));
    sayAll(root, { "held-lane": `${lane}`, "held-register": `${register} of ${held.length}`, "held-part": held[0].length > 1 ? `${part} of ${held[0].length}` : "all 32 bits", "held-element": `(${row}, ${column})` });
    body.replaceChildren(...held.map((parts, i) => tableRow([`r${i}`, parts.map((pair) => `(${pair.join(", ")})`).join(" ")])));
    body.children[register].classList.add("on");
    speak(`lane ${lane}, register ${register}: ${fragment.names[0]} ${row}, ${fragment.names[1]} ${column}`);
  }
  choosing(svg, ({ dataset }) => choose(Number(dataset.lane), Number(dataset.register), Number(dataset.part)));
  choosing(lanes, ({ dataset }) => choose(Number(dataset.lane), 0, 0));
  return {
    show(state) {
      const found = DATA.fragments.find(({ name }) => name === state.fragment);
      if (!found) throw new Error(`The fragment ${state.fragment} is not among those of the list.`);
      fragment = found;
      draw();
      choose(0, 0, 0);
      return fragment;
    },
  };
}
