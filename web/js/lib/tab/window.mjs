// @ts-check
/** The rows in view among many of one height; space above and below replaces the others. Pure. */

/** Rows drawn beyond the edges, so that a turn of the wheel and the tabulator find some. */
const BEYOND = 8;

/**
 * @param {number} count
 * @param {number} height of a row
 * @param {number} top how far it was scrolled
 * @param {number} seen height of the view
 * @returns {{ first: number, end: number, above: number, below: number }} rows from `first` to before `end`, and the
 *   space in place of the others
 */
export function inView(count, height, top, seen) {
  const first = Math.max(0, Math.min(count, Math.floor(top / height)) - BEYOND);
  const end = Math.min(count, Math.ceil((top + seen) / height) + BEYOND);
  return { first, end, above: first * height, below: (count - end) * height };
}

/**
 * How far to scroll so that a row is seen, by no more than that.
 * @param {number} row
 * @param {number} height
 * @param {number} top
 * @param {number} seen
 * @param {number} covered by the head of the table
 */
export function scrolledTo(row, height, top, seen, covered = 0) {
  const [start, end] = [row * height, (row + 1) * height];
  if (start < top) return start;
  return end > top + seen - covered ? end - seen + covered : top;
}
