// @ts-check
/** Matches texts against a sentence with placeholders, in one pass from left to right. Pure. */

/**
 * @typedef {Record<string, string>} Values
 * @typedef {{ literals: string[], holes: string[] }} Form a sentence's fixed parts, and the placeholders' names between them
 */

/** @param {string} sentence `{name}` is a placeholder @returns {Form} */
export function formOf(sentence) {
  const parts = sentence.split(/\{(\w+)\}/);
  return {
    literals: parts.filter((_, i) => i % 2 === 0),
    holes: parts.filter((_, i) => i % 2 === 1),
  };
}

/**
 * The placeholders' values in a text; null if the text does not match. A value ends at the first match of the next part.
 * @param {Form} form @param {string} text @param {number} least minimum characters of a value
 * @returns {Values | null}
 */
export function readForm({ literals, holes }, text, least = 1) {
  const last = literals.length - 1;
  if (!last) return text === literals[0] ? {} : null;
  const end = text.length - literals[last].length;
  if (!text.startsWith(literals[0]) || !text.endsWith(literals[last])) return null;
  /** @type {Values} */
  const values = {};
  let from = literals[0].length;
  for (let i = 1; i <= last; i += 1) {
    const to = i === last ? end : text.indexOf(literals[i], from + least);
    if (to < from + least || to > end) return null;
    values[holes[i - 1]] = text.slice(from, to);
    from = to + literals[i].length;
  }
  return values;
}

/** A sentence with values in place of its placeholders. @param {string} sentence @param {Values} values */
export function filled(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (hole, name) =>
    Object.hasOwn(values, name) ? values[name] : hole,
  );
}
