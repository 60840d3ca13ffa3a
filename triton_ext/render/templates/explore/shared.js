// From what is typed in to a tile of shared memory. The swizzle atoms are Python's (DATA.atoms);
// here they are stacked, as triton_ext.layouts.nvmma_shared does.

const { chunk: CHUNK, bank: BANK, banks: BANKS, line: LINE } = DATA.memory;
const ATOM_ROWS = DATA.atomRows;

function readShape(text) {
  const sizes = text.trim().split(/\s*[x×,]\s*/).map(Number);
  if (!sizes.every(isPower)) throw new Error(`The shape ${text}: powers of two, such as 128x64.`);
  if (sizes.length > DATA.maxRank) throw new Error(`The shape ${text}: at most ${DATA.maxRank} dimensions.`);
  if (product(sizes) > DATA.maxElements) throw new Error(`The shape ${text}: at most ${DATA.maxElements} elements.`);
  return sizes;
}
function readType(text) {
  const bits = DATA.types[text.trim().toLowerCase()];
  if (!bits) throw new Error(`The type ${text}: one of ${Object.keys(DATA.types).join(", ")}.`);
  return bits;
}
// "[[1, 0]]" -> bases; the rule is that of triton_ext.layouts.cluster.checked_cga_layout.
function readCluster(text, rank) {
  if (!text.trim()) return [];
  let bases;
  try { bases = JSON.parse(text); } catch { bases = null; }
  const rule = `The cluster ${text}: lists of ${rank} numbers, such as [[${unit(rank, 0, 1).join(", ")}]]; along each dimension 1, 2, 4, ..., each once; at most 4.`;
  const whole = (value) => Number.isInteger(value) && value >= 0;
  if (!Array.isArray(bases) || bases.length > 4) throw new Error(rule);
  const seen = Array.from({ length: rank }, () => []);
  for (const basis of bases) {
    if (!Array.isArray(basis) || basis.length !== rank || !basis.every(whole) || basis.filter(Boolean).length > 1) throw new Error(rule);
    basis.forEach((value, dim) => { if (value) seen[dim].push(value); });
  }
  if (!seen.every((values) => values.sort((a, b) => a - b).every((value, i) => value === 2 ** i))) throw new Error(rule);
  return bases;
}

// How the blocks of a cluster share a tile: what each holds, and the bases of the block's number.
function cluster(cga, shape) {
  const kept = cga.map((basis) => basis.map((value, dim) => (value < shape[dim] ? value : 0)));
  const perBlock = shape.map((size, dim) => size / 2 ** kept.filter((basis) => basis[dim]).length);
  return { perBlock, block: kept.map((basis) => basis.map((value, dim) => value * perBlock[dim])) };
}
// How far some bases reach along a dimension.
const extent = (bases, dim) => 2 * Math.max(0.5, ...bases.map((basis) => basis[dim]));

function boxShape(perBlock, { swizzle, atom, transposed }) {
  const box = perBlock.map((size) => Math.min(size, DATA.boxLimit));
  if (!swizzle) return box;
  const contiguous = transposed ? 0 : box.length - 1, row = extent(atom, 1);
  if (perBlock[contiguous] < row)
    throw new Error(`A row of the ${swizzle}-byte swizzle atom has ${row} elements; a block holds ${perBlock[contiguous]} along dim${contiguous}.`);
  box[contiguous] = row;
  return box;
}
function boxBases(box, { swizzle, atom, transposed }) {
  const dims = box.map((_, dim) => dim);
  if (transposed) dims.push(dims.shift());  // the first dimension is the contiguous one
  const sizes = dims.map((dim) => box[dim]);
  const ordered = (flat) => {
    const digits = unravel(flat, sizes), point = box.map(() => 0);
    dims.forEach((dim, i) => { point[dim] = digits[i]; });
    return point;
  };
  if (!swizzle) return powers(product(box)).map(ordered);
  const last = box[box.length - 1], outer = product(box.slice(0, -1));
  const [rows, columns] = transposed ? [last, outer] : [outer, last];
  if (rows < ATOM_ROWS) throw new Error(`A swizzle atom has ${ATOM_ROWS} rows; this tile has ${rows}.`);
  const width = extent(atom, 1);
  return [
    ...atom,
    ...powers(rows / ATOM_ROWS).map((step) => [ATOM_ROWS * step, 0]),
    ...powers(columns / width).map((step) => [0, width * step]),
  ].map(([row, column]) => ordered(row * columns + column));
}
// `offset` and `block` bases of an NVMMA tile.
function nvmmaBases(shape, encoding, cga) {
  const { perBlock, block } = cluster(cga, shape), box = boxShape(perBlock, encoding);
  const order = shape.map((_, dim) => dim);
  if (!encoding.swizzle) order.reverse();
  const offset = boxBases(box, encoding);
  for (const dim of order)
    for (const step of powers(perBlock[dim] / box[dim])) offset.push(unit(shape.length, dim, box[dim] * step));
  return { offset, block };
}
// Atoms of a (M or N) x K tile, stacked along the strided dimension first.
function stackedBases(shape, atomBases, transposed) {
  if (shape.length !== 2) throw new Error("Core matrices are drawn for two dimensions.");
  const [strided, contiguous] = transposed ? [1, 0] : [0, 1];
  const steps = [[strided, ATOM_ROWS], [contiguous, extent(atomBases, 1)]];
  const offset = atomBases.map(([row, column]) => (transposed ? [column, row] : [row, column]));
  for (const [dim, size] of steps) {
    if (shape[dim] < size) throw new Error(`A core matrix has ${size} elements along dim${dim}; the tile has ${shape[dim]}.`);
    for (const step of powers(shape[dim] / size)) offset.push(unit(2, dim, size * step));
  }
  return offset;
}
function widestSwizzle(perBlock, bits, transposed, fp4) {
  if (fp4) return 128;
  const contiguous = transposed ? perBlock[0] : perBlock[perBlock.length - 1];
  if (perBlock.length < 2 || product(perBlock) / contiguous < ATOM_ROWS) return 0;
  return Math.max(...[0, 32, 64, 128].filter((width) => 8 * width <= contiguous * bits));
}

const basesText = (bases) => `[${bases.map((basis) => `[${basis.join(", ")}]`).join(", ")}]`;
function nvmmaAttribute({ swizzle, bits, transposed, fp4 }, rank, cga) {
  let text = `swizzlingByteWidth = ${swizzle}, transposed = ${transposed}, elementBitWidth = ${bits}`;
  if (fp4) text += ", fp4Padded = true";
  if (cga.length) text += `, CGALayout = ${basesText(cga)}`;
  else if (rank !== 2) text += `, rank = ${rank}`;
  return `#ttg.nvmma_shared<{${text}}>`;
}

// The tile that the controls describe: `shape`, `type`, `swizzle` ("auto", "rows", "0": core
// matrices, or a width), `major`, `part` ("tile" or "atom") and `cga`.
function describedTile(state) {
  const shape = readShape(state.shape), bits = readType(state.type), transposed = state.major === "MN";
  const fp4 = state.type.trim().toLowerCase() === DATA.fp4, cga = readCluster(state.cga, shape.length);
  const chosen = state.swizzle === "auto" ? widestSwizzle(cluster(cga, shape).perBlock, bits, transposed, fp4) : state.swizzle === "rows" ? 0 : Number(state.swizzle);
  const cores = state.swizzle === "0" || (state.part === "atom" && !chosen);
  if (fp4 && chosen !== 128) throw new Error("Padded fp4 has the 128-byte swizzle alone.");
  const atom = DATA.atoms[fp4 ? DATA.fp4 : `${bits},${chosen}`];
  const encoding = { swizzle: chosen, bits, transposed, fp4, atom };
  const words = cores ? "no swizzle" : chosen ? `${chosen}-byte swizzle` : "plain rows, no atoms";
  const rest = `${transposed ? "MN" : "K"}-major, ${words}, ${fp4 ? "padded 4" : bits}-bit elements`;
  const own = { bits, transposed, swizzle: chosen, cores, fp4, atom: chosen || cores ? { bases: atom, transposed } : null };
  if (state.part === "atom") {
    const offset = atom.map(([row, column]) => (transposed ? [column, row] : [row, column]));
    const sizes = [0, 1].map((dim) => extent(offset, dim));
    return { ...own, title: `${sizes.join("x")} atom, ${rest}`, attribute: nvmmaAttribute(encoding, 2, []), names: ["M/N", "K"], sizes, offset, block: [] };
  }
  const names = shape.length === 2 ? ["M/N", "K"] : shape.map((_, dim) => `dim${dim}`);
  const title = `${shape.join("x")}, ${rest}${cga.length ? `, ${2 ** cga.length} blocks` : ""}`;
  if (cores) {
    if (cga.length) throw new Error("Core matrices are drawn for one block.");
    const offset = stackedBases(shape, atom, transposed);
    return { ...own, title, attribute: `#ttg.shared_linear<{offset = ${basesText(offset)}}, alignment = 128>`, names, sizes: shape, offset, block: [] };
  }
  const bases = nvmmaBases(shape, encoding, cga);
  return { ...own, title, attribute: nvmmaAttribute(encoding, shape.length, cga), names, sizes: shape, ...bases };
}
