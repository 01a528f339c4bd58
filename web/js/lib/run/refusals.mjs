// @ts-check
/**
 * What the server refuses, in the language of the page. The sentences stand in web/js/sentences, a file for each language,
 * written from the code by scripts/generators/make_sentences.py; an English page asks for none of them. What nobody translated is shown
 * as it came. Pure, but for the one request.
 */

import { loadList } from "../page/words.mjs";
import { filled, formOf, readForm } from "./forms.mjs";

/**
 * @typedef {import("./forms.mjs").Form} Form
 * @typedef {import("./forms.mjs").Values} Values
 * @typedef {{ form: Form, said: string }} Known
 * @typedef {{ said: string, knows: number }} Told
 */

/** How deep a sentence may stand in the hole of another one. */
const DEPTH = 4;
/** A text of more sentences is a log's. */
const SENTENCES = 10;
/** Longer texts in two holes side by side are not looked through. */
const LONGEST_PAIR = 300;
/** Texts that are remembered: a panel says the same ones again and again. */
const REMEMBERED = 100;

/** @type {Known[]} */
let known = [];
/** @type {Map<string, string>} */
const remembered = new Map();

/**
 * Translations by English sentence, in place of those known so far.
 * @param {unknown} translations anything but texts is left out
 */
export function learnRefusals(translations) {
  known = Object.entries(translations ?? {})
    .filter(([, said]) => typeof said === "string")
    .map(([english, said]) => ({ form: formOf(english), said }))
    .sort((a, b) => weight(b.form) - weight(a.form));
  remembered.clear();
}

/** Of two sentences that a text may be, it is the one with more words of its own. @param {Form} form */
function weight({ literals }) {
  return literals.join("").length;
}

/**
 * Ask for the sentences of the page's language. A page without an answer shows them as they come.
 * @param {(address: URL) => Promise<Response>} fetchFile
 * @param {string} locale as ComfyUI names it
 */
export async function loadRefusals(fetchFile, locale) {
  learnRefusals(await loadList(fetchFile, "sentences", locale));
}

/** A refusal in the language of the page, as far as it is known. @param {string} text */
export function refusal(text) {
  if (!known.length) return text;
  const before = remembered.get(text);
  if (before !== undefined) return before;
  const { said } = tell(text, DEPTH);
  if (remembered.size >= REMEMBERED) remembered.clear();
  remembered.set(text, said);
  return said;
}

/**
 * What a text is in the language of the page, and how many of its characters were known. A sentence that ends with what
 * another one says looks like all of both: of two readings it is the one that knows more.
 * @param {string} text @param {number} depth @returns {Told}
 */
function tell(text, depth) {
  const core = text.replace(/^[\s:]+/, "").trimEnd();
  if (!core || !depth) return { said: text, knows: 0 };
  const one = piece(core, depth);
  const more = inTurn(core, depth);
  const best = one && one.knows >= more.knows ? one : more;
  return { said: text.replace(core, () => best.said), knows: best.knows };
}

/** A text that is one sentence or a list; null where it is neither. @param {string} text @param {number} depth @returns {Told | null} */
function piece(text, depth) {
  const one = whole(text, depth);
  const list = inList(text, depth);
  return list && list.knows >= (one?.knows ?? 1) ? list : one;
}

/** What a hole lists, `a; b` or `a, b`. @param {string} text @param {number} depth @returns {Told | null} */
function inList(text, depth) {
  const parts = text.split(/(; |, )/);
  if (depth === DEPTH || parts.length < 2 || parts.length > 2 * SENTENCES) return null;
  const told = parts.map((part, i) =>
    i % 2 ? { said: part, knows: 0 } : (whole(part, depth - 1) ?? { said: part, knows: 0 }),
  );
  return {
    said: told.map(({ said }) => said).join(""),
    knows: told.reduce((sum, { knows }) => sum + knows, 0),
  };
}

/** A text that is one sentence; null where it is none. @param {string} text @param {number} depth @returns {Told | null} */
function whole(text, depth) {
  for (const { form, said } of known) {
    const values = readForm(form, text, 0);
    if (values) return put(form, said, parted(form, values), depth);
  }
  return null;
}

/** @param {Form} form @param {string} said @param {Values} values @param {number} depth @returns {Told} */
function put(form, said, values, depth) {
  let knows = weight(form);
  /** @type {Values} */
  const told = {};
  for (const [name, value] of Object.entries(values)) {
    const inside = tell(value, depth - 1);
    told[name] = inside.said;
    knows += inside.knows;
  }
  return { said: filled(said, told), knows };
}

/**
 * Where two holes stand side by side, as in `{names}{more}`, or next to it, as in `{file} {problem}`, one of them holds words
 * of ours or nothing. That is where they part, whatever a name in the other one has in it.
 * @param {Form} form @param {Values} values what is in two that touch stands in the second @returns {Values}
 */
function parted({ literals, holes }, values) {
  const both = { ...values };
  for (let i = 1; i < holes.length; i += 1) {
    const text = both[holes[i - 1]] + literals[i] + both[holes[i]];
    if (literals[i].trim().length > 1 || text.length > LONGEST_PAIR) continue;
    const start = partedAt(text, literals[i]);
    if (start === undefined) continue;
    [both[holes[i - 1]], both[holes[i]]] = [
      text.slice(0, start),
      text.slice(start + literals[i].length),
    ];
  }
  return both;
}

/**
 * Where the first of two texts ends that have `between` between them; undefined where nothing tells.
 * @param {string} text @param {string} between
 */
function partedAt(text, between) {
  const cuts = [...text.matchAll(between ? /(?<=.)[\s\S]/g : /(?=[\s;,(]|\.$)/g)]
    .map(({ index }) => index)
    .filter((from) => text.startsWith(between, from));
  const rest = (/** @type {number} */ from) => text.slice(from + between.length).trim();
  return (
    cuts.find((from) => isKnown(rest(from)) || rest(from) === ".") ??
    cuts.find((from) => between && isKnown(text.slice(0, from))) ??
    (text.endsWith(between) ? text.length - between.length : undefined)
  );
}

/** @param {string} text */
function isKnown(text) {
  return text !== "" && known.some(({ form }) => readForm(form, text, 0));
}

/** A text that is several sentences, some of them known. @param {string} text @param {number} depth @returns {Told} */
function inTurn(text, depth) {
  const sentences = text.split(/(?<=[.!?:]) (?=\S)/);
  const many = sentences.length;
  if (many < 2 || many > SENTENCES) return { said: text, knows: 0 };
  /** @type {Told[]} */
  const from = [];
  from[many] = { said: "", knows: 0 };
  for (let first = many - 1; first >= 0; first -= 1) {
    from[first] = joined({ said: sentences[first], knows: 0 }, from[first + 1]);
    for (let end = first + 1; end <= many; end += 1) {
      if (end - first === many) continue; // all of it is one sentence, or none
      const one = piece(sentences.slice(first, end).join(" "), depth);
      const both = one && joined(one, from[end]);
      if (both && both.knows > from[first].knows) from[first] = both;
    }
  }
  return from[0];
}

/** @param {Told} one @param {Told} next @returns {Told} */
function joined(one, next) {
  const blank = next.said && !one.said.endsWith("。") ? " " : "";
  return { said: one.said + blank + next.said, knows: one.knows + next.knows };
}
