// @ts-check
/** How high the panel must be to show everything at the width it has. */

export const CHART_MIN = 150;
// As in the style sheet.
const GAP = 6;
const PADDING = 8;

/**
 * Height everything needs at this width, with the chart at its least, in CSS pixels.
 * @param {{ element: HTMLElement, body: HTMLElement, left: HTMLElement, plot: HTMLElement, canvas: HTMLElement,
 *   player: HTMLElement }} parts
 * @returns {number | null} null while it is not on the page
 */
export function neededHeight({ element, body, left, plot, canvas, player }) {
  if (!element.clientWidth) return null;
  const chart = CHART_MIN - canvas.clientHeight;
  const facts = natural(left) - plot.offsetHeight + natural(plot) + chart;
  const clips = player.hidden ? 0 : natural(player) + GAP;
  const beside = getComputedStyle(body).flexDirection === "row";
  const inside = beside ? Math.max(facts, clips) : facts + clips;
  return Math.ceil(natural(element) - body.offsetHeight + inside + 2 * PADDING);
}

/** Heights of what is inside, one below the other. @param {HTMLElement} place */
function natural(place) {
  const shown = [...place.children].map((child) => /** @type {HTMLElement} */ (child).offsetHeight);
  const rows = shown.filter((height) => height > 1);
  return rows.reduce((sum, height) => sum + height + GAP, -GAP);
}
