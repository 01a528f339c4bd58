// @ts-check
/**
 * One curve of a run: the value of each step, and at most about 2,000 points to draw. Neighbouring steps of a long
 * curve share a bucket with its minimum and maximum, so that no spike is lost, and its mean for the smoothed line. The
 * first and last point are exact. Pure.
 */

/** @typedef {{ step: number, value: number }} Point */

const MOST_BUCKETS = 1000;

export class Series {
  constructor() {
    /** The newest value of each step: a resumed run trains some again. @type {Map<number, number>} */
    this.values = new Map();
    /** The last added point. @type {Point | null} */
    this.newest = null;
    /** Cache, filled by a draw. @type {{ points: Point[], means: Point[] } | null} */
    this.drawn = null;
  }

  /** Number of steps with a value. */
  get length() {
    return this.values.size;
  }

  /**
   * Adds a value; one that is not finite leaves a gap.
   * @param {number} step
   * @param {number | null | undefined} value
   */
  add(step, value) {
    if (!Number.isFinite(step) || typeof value !== "number" || !Number.isFinite(value)) return;
    this.newest = { step, value };
    this.values.set(step, value);
    this.drawn = null;
  }

  /** Points to draw, in order of their step. @returns {Point[]} */
  get points() {
    return this.read().points;
  }

  /** The mean of each bucket at its mean step, in order. @returns {Point[]} */
  get means() {
    return this.read().means;
  }

  read() {
    if (this.drawn) return this.drawn;
    const all = [...this.values].map(([step, value]) => ({ step, value }));
    all.sort((a, b) => a.step - b.step);
    let [size, points, means] = [1, all, all];
    if (all.length > 2 * MOST_BUCKETS) {
      while (all.length > size * MOST_BUCKETS) size *= 2;
      const count = Math.ceil(all.length / size);
      const buckets = Array.from({ length: count }, (_, i) => all.slice(i * size, (i + 1) * size));
      points = [...new Set([all[0], ...buckets.flatMap(extremes), all[all.length - 1]])];
      means = buckets.map(mean);
    }
    this.drawn = { points, means };
    return this.drawn;
  }
}

/**
 * A running mean in which a value's weight halves after `halfLife` steps, however many points represent them.
 * @param {Point[]} points in order of their step
 * @param {number} halfLife in steps; 0 returns the points as they are
 * @returns {Point[]}
 */
export function smooth(points, halfLife) {
  if (!(halfLife > 0)) return points;
  let sum = 0;
  let weight = 0;
  let before = points[0]?.step ?? 0;
  return points.map(({ step, value }) => {
    const kept = 0.5 ** (Math.max(step - before, 0) / halfLife);
    const share = Math.max(step - before, 1) / halfLife;
    before = step;
    sum = sum * kept + value * share;
    weight = weight * kept + share;
    return { step, value: sum / weight };
  });
}

/**
 * Half-life of the smoothed line: the slider's square, so that its lower half is fine.
 * @param {number} slider 0 to 1
 * @param {number} span steps the chart shows
 * @returns {number} steps
 */
export function halfLife(slider, span) {
  return slider * slider * 0.25 * Math.max(span, 0);
}

/** Minimum and maximum of a bucket, in order of their steps. @param {Point[]} points @returns {Point[]} */
function extremes(points) {
  const low = points.reduce((a, b) => (b.value < a.value ? b : a));
  const high = points.reduce((a, b) => (b.value > a.value ? b : a));
  return low.step < high.step ? [low, high] : [high, low];
}

/** @param {Point[]} points @returns {Point} */
function mean(points) {
  const sum = { step: 0, value: 0 };
  for (const { step, value } of points) {
    sum.step += step;
    sum.value += value;
  }
  return { step: sum.step / points.length, value: sum.value / points.length };
}
