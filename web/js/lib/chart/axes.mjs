// @ts-check
/** Axes of a chart: ranges of data, scales, ticks. Pure. */

/**
 * @typedef {{ low: number, high: number, log: boolean }} Range
 * @typedef {{ at: (value: number) => number, from: (place: number) => number }} Scale
 */

const DECADE = [1, 2, 5];

/**
 * The range that shows all values, with a margin. A log scale shows only values above zero.
 * @param {Iterable<number>} values
 * @param {boolean} log
 * @returns {Range | null} null without values
 */
export function range(values, log) {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (log) return { low: low / 1.1, high: high * 1.1, log };
  const air = (high - low || Math.abs(high) || 1) * 0.05;
  return { low: low - air, high: high + air, log };
}

/**
 * Maps values of a range to positions from `start` to `end`, and back.
 * @param {Range} over
 * @param {number} start position of the lowest value
 * @param {number} end position of the highest value
 * @returns {Scale}
 */
export function scale(over, start, end) {
  const turn = over.log ? Math.log10 : (/** @type {number} */ value) => value;
  const back = over.log
    ? (/** @type {number} */ value) => 10 ** value
    : (/** @type {number} */ v) => v;
  const low = turn(over.low);
  const size = turn(over.high) - low || 1;
  return {
    at: (value) => start + ((turn(value) - low) / size) * (end - start),
    from: (place) => back(low + ((place - start) / (end - start || 1)) * size),
  };
}

/**
 * Round values inside a range, about `count` of them.
 * @param {Range} over
 * @param {number} count
 * @returns {number[]}
 */
export function ticks(over, count) {
  return over.log ? logTicks(over, count) : linearTicks(over, count);
}

/** @param {Range} over @param {number} count @returns {number[]} */
function linearTicks({ low, high }, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const gap = power * (DECADE.find((unit) => unit * power >= 0.75 * rough) ?? 10);
  const first = Math.ceil(low / gap - 1e-9);
  const last = Math.floor(high / gap + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) =>
    Number(((first + i) * gap).toPrecision(12)),
  );
}

/** Powers of ten, with 2 and 5 between them when there are few. @param {Range} over @param {number} count @returns {number[]} */
function logTicks(over, count) {
  const first = Math.floor(Math.log10(over.low));
  const last = Math.ceil(Math.log10(over.high));
  const apart = Math.max(1, Math.ceil((last - first) / Math.max(count, 1)));
  const units = apart === 1 && last - first < count ? DECADE : [1];
  const found = [];
  for (let power = first; power <= last; power += apart) {
    for (const unit of units) found.push(Number((unit * 10 ** power).toPrecision(12)));
  }
  const inside = found.filter((value) => value >= over.low && value <= over.high);
  return inside.length >= 2 ? inside : linearTicks(over, count).filter((value) => value > 0);
}
