// What the hardware makes of a tile: banks, matrix descriptors, TMA boxes.

// ---------------------------------------------------------------- banks

// One access of one warp (triton_ext.hardware.banks.warp_access): the wavefronts of each group of
// lanes that is served together, and for each word the lanes that access it.
function warpAccess(offsets, accessBytes) {
  const together = Math.min(32, LINE / accessBytes), groups = new Map(), lanesOf = new Map();
  offsets.forEach((offset, lane) => {
    if (offset === null) return;
    const group = Math.floor(lane / together);
    if (!groups.has(group)) groups.set(group, new Map());
    const banks = groups.get(group);
    for (let word = Math.floor(offset / BANK); word * BANK < offset + accessBytes; word += 1) {
      const bank = word % BANKS;
      banks.set(bank, (banks.get(bank) || new Set()).add(word));
      lanesOf.set(word, [...(lanesOf.get(word) || []), lane]);
    }
  });
  const collide = new Set();
  for (const banks of groups.values())
    for (const words of banks.values()) if (words.size > 1) words.forEach((word) => collide.add(word));
  const each = [...groups.values()].map((banks) => Math.max(...[...banks.values()].map((words) => words.size)));
  return { together, lanesOf, collide, wavefronts: each.reduce((a, b) => a + b, 0), ideal: each.length, degree: Math.max(...each) };
}
function wavefrontWords({ wavefronts, ideal, degree }) {
  const said = `${wavefronts} wavefront${wavefronts > 1 ? "s" : ""}`;
  return degree > 1 ? `${said} instead of ${ideal}: ${degree}-way bank conflict` : `${said}, no bank conflict`;
}

// The element at which each lane of an access starts, [row, column] of the plane.
// `kind`: chunk, ldmatrix.x1 to .x4 or stmatrix (with .trans where memory runs down), or
// ld.shared and st.shared of some bytes a lane.
function laneElements(plane, kind, at) {
  const [name, count] = kind.split(".x"), bytes = Number(kind.split(" ")[1] || CHUNK);
  const each = (8 * bytes) / plane.bits, along = plane.down ? 0 : 1;
  const [rows, columns] = plane.shape;
  if (each < 1) throw new Error(`${bytes} bytes hold no element of ${plane.bits} bits.`);
  const point = (strided, contiguous) => (along ? [strided, contiguous] : [contiguous, strided]);
  const size = along ? columns : rows, lines = along ? rows : columns;
  const [first, start] = along ? [at[0], at[1]] : [at[1], at[0]];
  const found = [];
  if (name.endsWith(".shared " + bytes)) {  // lane beside lane, then the next line
    const perLine = Math.max(1, size / each);
    for (let lane = 0; lane < 32; lane += 1) found.push(point(Math.floor(lane / perLine) % lines, (lane % perLine) * each));
  } else {
    const chunk = (8 * CHUNK) / plane.bits, from = start - (start % chunk), top = first - (first % ATOM_ROWS);
    const corners = [[0, 0], [ATOM_ROWS, 0], [0, chunk], [ATOM_ROWS, chunk]].slice(0, Number(count || 1));
    for (const [down, across] of corners)
      for (let line = 0; line < ATOM_ROWS; line += 1) found.push(point(top + down + line, from + across));
  }
  const runs = plane.cell[1 - along] === 1 && plane.cell[along] * plane.bits >= 8 * bytes;
  if (!runs) throw new Error(`${bytes} bytes do not stay together in this layout.`);
  return { bytes, elements: found.filter(([row, column]) => row < rows && column < columns), outside: found.some(([row, column]) => row >= rows || column >= columns) };
}

// ---------------------------------------------------------------- matrix descriptors

const hex = (value, digits) => `0x${value.toString(16).padStart(digits, "0")}`;

function swizzled(address, width, atomicity) {
  const base = log2(atomicity), shift = log2(LINE) - base, bits = log2(Math.max(1, width / atomicity));
  return address ^ ((address & (((1 << bits) - 1) << (base + shift))) >> shift);
}
// The 64 bits, as a BigInt, of fields in raw units (DATA.descriptor[arch].fields).
function encodeFields(values, arch) {
  return DATA.descriptor[arch].fields.reduce((all, { key, first }) => all | (BigInt(values[key] || 0) << BigInt(first)), 0n);
}
function decodeFields(value, arch) {
  const { fields } = DATA.descriptor[arch];
  let rest = value;
  const found = fields.map((field) => {
    const mask = ((1n << BigInt(field.bits)) - 1n) << BigInt(field.first);
    rest &= ~mask;
    const raw = Number((value & mask) >> BigInt(field.first)), { legal } = field;
    const problem = legal && !legal.includes(raw) ? `must be ${legal.length > 1 ? "one of " : ""}${legal.join(", ")}` : "";
    return { ...field, raw, meaning: meaningOf(field, raw, arch), problem };
  });
  const reserved = { key: "reserved", name: "reserved", raw: rest, meaning: "must be 0", problem: rest ? "reserved bits are set" : "" };
  return [...found, reserved];
}
function meaningOf({ key }, raw, arch) {
  if (["start_address", "leading_byte_offset", "stride_byte_offset"].includes(key)) return `${raw} x ${CHUNK} = ${raw * CHUNK} bytes`;
  if (key === "lbo_mode") return raw ? "LBO is an absolute address" : "LBO is relative to the start address";
  if (key === "base_offset") return `${raw} lines of ${LINE} bytes`;
  const code = key === "swizzle" && DATA.descriptor[arch].codes.find((one) => one[0] === raw);
  if (code) return code[1] ? `${code[1]} bytes, atomicity ${code[2]}` : "none";
  return key === "version" ? "a constant" : "not a legal value";
}

// How an MMA reads a tile (triton_ext.hardware.operand.derive_operand). `mn` and `k`: the byte of
// the elements 1, 2, 4, ... along each dimension; `tile` and `instruction` are (M or N, K).
function deriveOperand(mn, k, elementBytes, tile, instruction, arch, start = 0) {
  instruction.forEach((size, i) => {
    if (!isPower(size) || size > tile[i]) throw new Error(`The instruction ${instruction.join("x")}: powers of two within the tile, ${tile.join("x")}.`);
  });
  const reasons = [];
  for (const [code, width, atomicity] of DATA.descriptor[arch].codes)
    for (const major of ["K", "MN"]) {
      const found = derivedAs(mn, k, elementBytes, instruction, { arch, start, width, atomicity, major });
      if (typeof found === "string") { reasons.push(`${width ? `${width}-byte` : "no"} swizzle, ${major}-major: ${found}`); continue; }
      const at = (bases, value) => xorBases(bases.map((byte) => [byte]), value, [0])[0];
      const advances = Array.from({ length: tile[0] / instruction[0] }, (_, i) =>
        Array.from({ length: tile[1] / instruction[1] }, (__, j) => at(mn, i * instruction[0]) ^ at(k, j * instruction[1])));
      const values = { leading_byte_offset: found.lbo / CHUNK, stride_byte_offset: found.sbo / CHUNK, swizzle: code };
      const version = DATA.descriptor[arch].fields.find(({ key }) => key === "version");
      if (version) values.version = version.legal[0];
      const encoded = (address) => encodeFields({ ...values, start_address: address / CHUNK }, arch);
      return { ...found, major, width, atomicity, advances, tile, instruction, encoded };
    }
  throw new Error(`No matrix descriptor reads this tile. ${reasons.join("; ")}.`);
}
// LBO and SBO for one swizzle and major-ness, or why there is none.
function derivedAs(mnSwizzled, kSwizzled, elementBytes, instruction, { arch, start, width, atomicity, major }) {
  const isK = major === "K", rows = atomicity === 32 ? ATOM_ROWS / 2 : ATOM_ROWS, rowBytes = Math.max(CHUNK, width), row = rowBytes / elementBytes;
  if (atomicity === 32 && isK) return "32-byte atomicity is for MN-major operands alone";
  if (!isK && Number(arch) === 90 && elementBytes !== 2) return "wgmma reads MN-major operands of 16-bit elements alone";
  if (!isK && elementBytes === 4 && atomicity !== 32) return "tcgen05 reads MN-major tf32 with 32-byte atomicity alone";
  const size = width ? rowBytes * rows : CHUNK;
  if (start % size) return `the tile's address must be a multiple of ${size} bytes`;
  const [mn, k] = [mnSwizzled, kSwizzled].map((all) => all.map((byte) => swizzled(byte, width, atomicity)));
  const bits = instruction.map(log2);
  let covered = 0;
  for (const byte of [...mn.slice(0, bits[0]), ...k.slice(0, bits[1])]) {
    if (covered & byte) return "two bits of the coordinates land on one bit of the address";
    covered |= byte;
  }
  if ([...mn.slice(bits[0]), ...k.slice(bits[1])].some((byte) => covered & byte)) return "a step to the next subtile changes the address within a subtile";
  const [contiguous, strided] = isK ? [k, mn] : [mn, k], [along, across] = isK ? [bits[1], bits[0]] : bits;
  if (2 ** along < Math.min(row, CHUNK / elementBytes)) return "the instruction must span 16 bytes along the contiguous dimension";
  const stride = (bytes, count, size, step) => {
    const inside = bytes.slice(0, Math.min(log2(size), count)), beyond = bytes.slice(log2(size), count);
    if (inside.some((byte, bit) => byte !== step * 2 ** bit)) return "not the order within an atom";
    if (beyond.some((byte, bit) => bit && byte !== 2 * beyond[bit - 1])) return "the stride between atoms is not constant";
    return beyond.length ? beyond[0] : null;
  };
  const leading = stride(contiguous, along, row, elementBytes), step = stride(strided, across, rows, rowBytes);
  for (const one of [leading, step]) if (typeof one === "string") return one;
  if (width && isK && leading !== null) return "the instruction's K must fit one row of the atom";
  let found = { lbo: leading === null ? CHUNK : leading, sbo: step || 0, usesLeading: leading !== null, usesStride: step !== null };
  if (!width && !isK) found = { lbo: step || 0, sbo: leading || 0, usesLeading: step !== null, usesStride: leading !== null };
  if ([found.lbo, found.sbo].some((byte) => byte % CHUNK || byte >= 2 ** 18)) return "a stride is no multiple of 16 below 2^18 bytes";
  return found;
}

// ---------------------------------------------------------------- TMA

// The copies that fill a tile at `start` of a tensor (triton_ext.hardware.tma_tile.tile_copies).
// `strides`: of the tensor, in elements; none: dense. `address`: of the tensor.
function tmaBoxes(tile, tensor, start, strides = null, address = 0) {
  const rank = tile.sizes.length, dims = tile.sizes.map((_, dim) => dim), contiguous = tile.transposed ? 0 : rank - 1;
  if (tensor.length !== rank || start.length !== rank) throw new Error(`The tensor and the start need ${rank} dimensions, as the tile.`);
  if (tile.transposed && tile.swizzle && rank > 2) throw new Error("No TMA copy writes a swizzled, transposed tile of 3 or more dimensions.");
  const order = [contiguous, ...dims.filter((dim) => dim !== contiguous).reverse()];
  const packing = tile.fp4 ? 2 : 1, multiple = tile.fp4 ? 2 * CHUNK : CHUNK;  // of strides and address
  const steps = strides || order.reduce(({ found, unit_ }, dim) => { found[dim] = unit_; return { found, unit_: unit_ * tensor[dim] }; }, { found: [], unit_: 1 }).found;
  if (steps.length !== rank || steps[contiguous] !== 1) throw new Error(`The strides need ${rank} numbers, 1 along dim${contiguous}: TMA reads the innermost dimension contiguously.`);
  if (steps.some((step, dim) => dim !== contiguous && (step * tile.bits) % (8 * multiple))) throw new Error(`The strides ${steps.join(",")}: multiples of ${multiple} bytes, but for the innermost.`);
  if (address % multiple) throw new Error(`The address must be a multiple of ${multiple}.`);
  if (tile.fp4 && tensor[contiguous] % 64) throw new Error("Of padded fp4, a tensor's row is a multiple of 64 bytes (128 elements).");
  const most = tile.fp4 ? 4 * CHUNK : CHUNK;
  if ((start[contiguous] * tile.bits) % (8 * most)) throw new Error(`The innermost coordinate must be a multiple of ${most} bytes.`);
  const box = tile.sizes.map((size) => Math.min(size, DATA.boxLimit));
  if (tile.atom) box[contiguous] = extent(tile.atom.bases, 1);
  const bytes = (product(box) * tile.bits) / 8, places = dims.map(() => 0);
  let unitBytes = bytes * packing;
  for (const dim of tile.cores ? [1 - contiguous, contiguous] : dims) {
    places[dim] = unitBytes;
    unitBytes *= tile.sizes[dim] / box[dim];
  }
  const counts = tile.sizes.map((size, dim) => size / box[dim]);
  const globalAt = (point) => address + point.reduce((sum, value, dim) => sum + (value * steps[dim] * tile.bits) / 8, 0);
  return Array.from({ length: product(counts) }, (_, number) => {
    const index = unravel(number, [...counts].reverse()).reverse();  // the first dimension fastest
    const within = index.map((value, dim) => value * box[dim]);
    const first = within.map((value, dim) => start[dim] + value);
    const inside = first.map((from, dim) => {
      const begin = Math.min(Math.max(0, -from), box[dim]);
      return [begin, Math.max(begin, Math.min(box[dim], tensor[dim] - from))];
    });
    const coordinates = order.map((dim) => first[dim] * (dim === contiguous ? packing : 1));
    const offset = index.reduce((sum, value, dim) => sum + value * places[dim], 0);
    return { within, first, shape: box, coordinates, offset, bytes, smemBytes: bytes * packing, inside, globalAt };
  });
}
