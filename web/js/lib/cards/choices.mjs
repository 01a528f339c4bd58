// @ts-check
/** The choice about one clip: excluded, its piece in seconds, and the place of its crop. Pure. */

import { t } from "../page/words.mjs";
import { known } from "../run/format.mjs";

/**
 * @typedef {{ excluded?: boolean, start_s?: number, length_s?: number, crop?: number[] }} Choice as in wan_dataset.json
 * @typedef {{ num_frames: number, width: number, height: number }} Bucket the size at which a clip is trained
 * @typedef {{ start: number, end: number }} Piece in seconds
 */

/** Steps of the strip per second. */
const STEPS = 100;

/** The groups above the sheet: value and name. @returns {[string, string][]} */
export function groups() {
  return [
    ["", t("All clips")],
    ["captionless", t("Without caption")],
    ["short", t("Too short")],
    ["still", t("Stills")],
    ["alike", t("Look-alikes")],
    ["excluded", t("Excluded")],
    ["marked", t("Marked ⚠")],
  ];
}

/** @param {Choice | undefined} choice @param {number} duration in seconds @returns {Piece} */
export function pieceOf(choice, duration) {
  const start = Math.min(choice?.start_s ?? 0, duration);
  return { start, end: Math.min(start + (choice?.length_s ?? duration), duration) };
}

/**
 * The piece with one end moved; it stays at least `least` seconds long.
 * @param {Piece} piece @param {"start" | "end"} end @param {number} to @param {number} least @param {number} duration
 * @returns {Piece}
 */
export function movedPiece({ start, end }, which, to, least, duration) {
  const shortest = Math.min(least, duration);
  if (which === "start") return { start: within(to, 0, end - shortest), end };
  return { start, end: within(to, start + shortest, duration) };
}

/** @param {Choice} choice @param {Piece} piece @param {number} duration @returns {Choice} */
export function withPiece({ start_s, length_s, ...others }, { start, end }, duration) {
  const from = rounded(start);
  const whole = end > duration - 1 / STEPS;
  return {
    ...others,
    ...(from > 0 ? { start_s: from } : {}),
    ...(whole ? {} : { length_s: rounded(end - from) }),
  };
}

/** @param {Choice} choice @param {boolean} excluded @returns {Choice} */
export function withExcluded({ excluded: _, ...others }, excluded) {
  return excluded ? { ...others, excluded } : others;
}

/** Whether a piece or a crop is chosen. @param {Choice} choice */
export function isCut({ start_s, length_s, crop }) {
  return Boolean(start_s || length_s || crop);
}

/**
 * The crop window as shares of the picture; null if the complete picture is trained. Only one axis has room.
 * @param {number} wide of the picture @param {number} high @param {Bucket | undefined} bucket @param {Choice} choice
 * @returns {{ axis: 0 | 1, size: number, at: number } | null} `at`: place of the window, from 0 to 1
 */
export function cropOf(wide, high, bucket, { crop }) {
  if (!bucket || ![wide, high, bucket.width, bucket.height].every((one) => known(one) && one > 0))
    return null;
  const ratio = bucket.width / bucket.height / (wide / high);
  const axis = ratio < 1 ? 0 : 1;
  const size = Math.min(ratio, 1 / ratio);
  return size > 0.99 ? null : { axis, size, at: crop?.[axis] ?? 0.5 };
}

/** @param {Choice} choice @param {0 | 1} axis @param {number} at @returns {Choice} */
export function withCrop({ crop: _, ...others }, axis, at) {
  const place = rounded(within(at, 0, 1));
  if (place === 0.5) return others;
  return { ...others, crop: axis ? [0.5, place] : [place, 0.5] };
}

/** @param {Piece} piece @param {number} duration */
export function pieceText({ start, end }, duration) {
  const values = { start: start.toFixed(2), end: end.toFixed(2), duration: duration.toFixed(2) };
  return t("{start} to {end} of {duration} s", values);
}

/** @param {number} seconds */
function rounded(seconds) {
  return Math.round(seconds * STEPS) / STEPS;
}

/** @param {number} value @param {number} low @param {number} high */
function within(value, low, high) {
  return Math.max(low, Math.min(value, high));
}
