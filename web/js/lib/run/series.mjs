// @ts-check
/**
 * One curve of a run, of any length, in at most 2,000 points: neighbouring steps share a bucket that keeps its lowest
 * and its highest value, so that no spike is lost, and its mean, which the smoothed line follows. The first and the newest
 * point stand as they were measured. Pure.
 */

/** @typedef {{ step: number, value: number }} Point */
/** @typedef {{ pass: number, points: Point[], sum: number, count: number, middle: number }} Bucket */

export const MOST_POINTS = 2000;

export class Series {
  /** @param {number} most points kept */
  constructor(most = MOST_POINTS) {
    this.most = most;
    /** Steps that share a bucket. */
    this.width = 1;
    /** @type {Map<number, Bucket>} */
    this.buckets = new Map();
    this.length = 0;
    /** @type {Point | null} */
    this.first = null;
    /** @type {Point | null} */
    this.newest = null;
    this.pass = 0;
    /** @type {{ points: Point[], means: Point[] } | null} */
    this.sorted = null;
  }

  /**
   * Steps usually come in order. One at or below the newest is a resumed run that trains it again: of a step trained
   * twice the newest value counts. A value that is not a finite number leaves a gap.
   * @param {number} step
   * @param {number | null | undefined} value
   */
  add(step, value) {
    if (!Number.isFinite(step) || typeof value !== "number" || !Number.isFinite(value)) return;
    if (this.newest && step <= this.newest.step) this.pass += 1;
    this.newest = { step, value };
    if (!this.first || step <= this.first.step) this.first = this.newest;
    const index = Math.floor(step / this.width);
    const bucket = this.buckets.get(index) ?? newBucket(this.pass);
    this.length -= bucket.points.length;
    if (bucket.pass !== this.pass) rewind(bucket, step, this.pass);
    put(bucket, { step, value });
    this.buckets.set(index, bucket);
    this.length += bucket.points.length;
    this.sorted = null;
    while (this.length > this.most) this.coarsen();
  }

  /** The kept points in order of their step. @returns {Point[]} */
  get points() {
    return this.read().points;
  }

  /** The mean of each bucket at its mean step, in order. @returns {Point[]} */
  get means() {
    return this.read().means;
  }

  read() {
    if (!this.sorted) {
      const buckets = [...this.buckets.entries()]
        .sort((a, b) => a[0] - b[0])
        .map((entry) => entry[1]);
      this.sorted = {
        points: withEnds(
          buckets.flatMap((bucket) => bucket.points),
          this.first,
          this.newest,
        ),
        means: buckets.map((b) => ({ step: b.middle / b.count, value: b.sum / b.count })),
      };
    }
    return this.sorted;
  }

  /** Twice as many steps to a bucket. */
  coarsen() {
    this.width *= 2;
    /** @type {Map<number, Bucket>} */
    const merged = new Map();
    const old = [...this.buckets.entries()].sort((a, b) => a[0] - b[0]);
    for (const [index, bucket] of old) {
      const into = merged.get(index >> 1);
      if (into) join(into, bucket);
      else merged.set(index >> 1, bucket);
    }
    this.buckets = merged;
    this.length = 0;
    for (const bucket of merged.values()) this.length += bucket.points.length;
    this.sorted = null;
  }
}

/**
 * A running mean in which a value counts half after `halfLife` steps, however many points stand for those steps.
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

/**
 * A bucket of many steps keeps its extremes, which the ends of a curve seldom are.
 * @param {Point[]} points in order
 * @param {Point | null} first
 * @param {Point | null} newest
 */
function withEnds(points, first, newest) {
  if (!first || !newest) return points;
  if (points[0].step > first.step) points.unshift(first);
  if (points[points.length - 1].step < newest.step) points.push(newest);
  return points;
}

/** @param {number} pass @returns {Bucket} */
function newBucket(pass) {
  return { pass, points: [], sum: 0, count: 0, middle: 0 };
}

/**
 * Forget what an earlier pass knew of this bucket from `step` on.
 * @param {Bucket} bucket
 * @param {number} step
 * @param {number} pass
 */
function rewind(bucket, step, pass) {
  const kept = bucket.points.filter((point) => point.step < step);
  Object.assign(bucket, newBucket(pass));
  for (const point of kept) put(bucket, point);
}

/** @param {Bucket} bucket @param {Point} point */
function put(bucket, point) {
  bucket.points = extremes([...bucket.points, point]);
  bucket.sum += point.value;
  bucket.middle += point.step;
  bucket.count += 1;
}

/** @param {Bucket} into @param {Bucket} other the later steps */
function join(into, other) {
  into.points = extremes([...into.points, ...other.points]);
  into.sum += other.sum;
  into.middle += other.middle;
  into.count += other.count;
  into.pass = Math.max(into.pass, other.pass);
}

/**
 * The lowest and the highest of a few points, in order of their step.
 * @param {Point[]} points in order
 * @returns {Point[]}
 */
function extremes(points) {
  if (points.length <= 2) return points;
  const low = points.reduce((a, b) => (b.value < a.value ? b : a));
  const high = points.reduce((a, b) => (b.value > a.value ? b : a));
  if (low === high) return [points[0], points[points.length - 1]];
  return low.step < high.step ? [low, high] : [high, low];
}
