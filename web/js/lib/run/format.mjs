// @ts-check
/** Formats numbers; an unknown number is an empty text. Pure. */

import { t } from "../page/words.mjs";

const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** @param {unknown} value @returns {value is number} */
export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/**
 * Formats seconds as 0:07, 12:05 or 3:02:01; two days and more as days and hours.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function clock(seconds) {
  if (!known(seconds) || seconds < 0) return "";
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  if (hours >= 48) {
    return t("{days} d {hours} h", { days: Math.floor(hours / 24), hours: hours % 24 });
  }
  const minutes = Math.floor((whole % 3600) / 60);
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/**
 * Remaining time of a run.
 * @param {number | null | undefined} pace seconds per step
 * @param {number | null | undefined} step
 * @param {number | null | undefined} steps
 * @param {number | null} [ofHours] remaining seconds of the run's time limit
 * @param {number | null} [beside] additional seconds for the remaining saves, evaluations and previews
 * @returns {number | null} seconds, or null before a pace is known
 */
export function secondsLeft(pace, step, steps, ofHours = null, beside = null) {
  if (!known(pace) || !known(step) || !known(steps) || pace <= 0) return null;
  const ofSteps = Math.max(steps - step, 0) * pace + (beside ?? 0);
  return Math.min(ofSteps, ofHours ?? Number.POSITIVE_INFINITY);
}

/**
 * A number in a few digits: 0.0312, 1.25, 1e-4.
 * @param {number | null | undefined} value
 * @param {number} digits
 * @returns {string}
 */
export function short(value, digits = 3) {
  if (!known(value)) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits)));
  return value
    .toExponential(digits - 1)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

/**
 * Bytes as GiB, small ones as MiB.
 * @param {number | null | undefined} bytes
 * @returns {string}
 */
export function gib(bytes) {
  if (!known(bytes)) return "";
  return bytes >= 0.1 * GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${Math.round(bytes / MIB)} MiB`;
}

/**
 * Bytes of a file, up to three digits: 1.39 MiB, 146 MiB, 1.2 GiB.
 * @param {number} bytes
 * @returns {string}
 */
export function fileSize(bytes) {
  return bytes < 0.1 * GIB ? `${short(bytes / MIB)} MiB` : gib(bytes);
}

/**
 * How long ago, roughly.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function ago(seconds) {
  if (!known(seconds)) return "";
  if (seconds < 60) return t("just now");
  if (seconds < 3600) return t("{n} min ago", { n: Math.floor(seconds / 60) });
  if (seconds < 86400) return t("{n} h ago", { n: Math.floor(seconds / 3600) });
  return t("{n} d ago", { n: Math.floor(seconds / 86400) });
}

/**
 * Median.
 * @param {number[]} values
 * @returns {number | null} null for an empty list
 */
export function median(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}
