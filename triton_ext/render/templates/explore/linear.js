// Linear layouts: the coordinate is the XOR of the bases that the bits of the index select.

const log2 = (size) => 31 - Math.clz32(size);
const powers = (size) => Array.from({ length: log2(size) }, (_, bit) => 2 ** bit);
const product = (numbers) => numbers.reduce((all, one) => all * one, 1);
const isPower = (size) => Number.isInteger(size) && size >= 1 && size < 2 ** 31 && (size & (size - 1)) === 0;
const unit = (rank, dim, value) => Array.from({ length: rank }, (_, i) => (i === dim ? value : 0));

// XORs the bases that `value` selects into `into`, a list of coordinates.
function xorBases(bases, value, into) {
  bases.forEach((basis, bit) => {
    if ((value >> bit) & 1) basis.forEach((part, i) => { into[i] ^= part; });
  });
  return into;
}

// A right inverse of a surjective layout. `inputs`: lists of bases; of inputs that are free, the
// later stay 0. For each output dimension: the inputs of 1, 2, 4, ... along it, one number each.
function invert(inputs, sizes) {
  const shifts = sizes.map((_, dim) => sizes.slice(0, dim).reduce((sum, size) => sum + log2(size), 0));
  const pack = (point) => point.reduce((all, part, dim) => all | (part << shifts[dim]), 0);
  const reduced = new Map();  // the highest bit of an image -> [image, the inputs whose XOR it is]
  inputs.forEach((bases, input) => bases.forEach((basis, bit) => {
    let image = pack(basis);
    const from = inputs.map((_, other) => (other === input ? 2 ** bit : 0));
    for (const [pivot, [other, others]] of reduced)
      if ((image >> pivot) & 1) {
        image ^= other;
        others.forEach((value, i) => { from[i] ^= value; });
      }
    if (!image) return;
    const pivot = log2(image);
    for (const row of reduced.values())
      if ((row[0] >> pivot) & 1) {
        row[0] ^= image;
        from.forEach((value, i) => { row[1][i] ^= value; });
      }
    reduced.set(pivot, [image, from]);
  }));
  return sizes.map((size, dim) => powers(size).map((_, bit) => {
    const found = reduced.get(shifts[dim] + bit);
    if (!found) throw new Error("the layout does not reach every element");
    return found[1];
  }));
}

// The row-major digits of a number.
function unravel(number, sizes) {
  const digits = sizes.map(() => 0);
  for (let dim = sizes.length - 1; dim >= 0; dim -= 1) {
    digits[dim] = number % sizes[dim];
    number = Math.floor(number / sizes[dim]);
  }
  return digits;
}
