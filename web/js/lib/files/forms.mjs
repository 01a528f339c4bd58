// @ts-check
/** Texts that belong to a sentence with holes: found in one walk from left to right, however long or strange a text is. Pure. */

/**
 * @typedef {Record<string, string>} Values
 * @typedef {{ literals: string[], holes: string[] }} Form what stands fast in a sentence, and the names of the holes between
 */

/** @param {string} sentence `{name}` is a hole @returns {Form} */
export function formOf(sentence) {
  const parts = sentence.split(/\{(\w+)\}/);
  return {
    literals: parts.filter((_, i) => i % 2 === 0),
    holes: parts.filter((_, i) => i % 2 === 1),
  };
}

/**
 * What is in the holes of a text; null where it is no text of that form. Each hole ends where what follows it stands first.
 * @param {Form} form @param {string} text @param {number} least characters in a hole
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

/** A sentence with its holes filled. @param {string} sentence @param {Values} values */
export function filled(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (hole, name) =>
    Object.hasOwn(values, name) ? values[name] : hole,
  );
}
