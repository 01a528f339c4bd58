// @ts-check
/** Checked casts of data from the server or a file. Pure. */

/** @param {any} value @returns {any[]} */
export function list(value) {
  return Array.isArray(value) ? value : [];
}

/** @param {any} value @returns {Record<string, any>[]} only the records of a list */
export function records(value) {
  return list(value).filter((one) => one && typeof one === "object" && !Array.isArray(one));
}

/** @param {unknown} value @returns {string} empty if it is no text */
export function text(value) {
  return typeof value === "string" ? value : "";
}
