// @ts-check
/** Computes the rows in view of a list with equal row heights; empty space replaces the rows above and below. Pure. */

/** Rows drawn outside the view, so that scrolling and the Tab key find rows. */
const BEYOND = 8;

/**
 * @param {number} count
 * @param {number} height of a row
 * @param {number} top scroll offset
 * @param {number} seen height of the view
 * @returns {{ first: number, end: number, above: number, below: number }} rows `first` to `end` (exclusive), and the heights
 *   of the empty spaces
 */
export function inView(count, height, top, seen) {
  const first = Math.max(0, Math.min(count, Math.floor(top / height)) - BEYOND);
  const end = Math.min(count, Math.ceil((top + seen) / height) + BEYOND);
  return { first, end, above: first * height, below: (count - end) * height };
}

/**
 * The nearest scroll offset at which a row is in view.
 * @param {number} row
 * @param {number} height
 * @param {number} top
 * @param {number} seen
 * @param {number} covered height of the table head
 */
export function scrolledTo(row, height, top, seen, covered = 0) {
  const [start, end] = [row * height, (row + 1) * height];
  if (start < top) return start;
  return end > top + seen - covered ? end - seen + covered : top;
}
