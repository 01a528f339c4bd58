// @ts-check
/** Search, order, groups and differing settings of runs, for the table. Pure. */

import { stepOf } from "../run/trouble.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {{ key: string, setting: boolean }} Column
 * @typedef {{ key: string, down: boolean }} Order
 * @typedef {{ name: string, runs: Summary[] }} Group
 */

/** Columns before and after the settings. */
export const STANDING = ["eval_best", "state", "step"];
export const OUTCOMES = ["loss", "seconds_per_step", "updated"];
const LOWER_IS_BETTER = ["loss", "eval_best", "seconds_per_step"];
/** Settings shown first, because they differ most often. */
const FIRST = ["rank", "alpha", "learning_rate", "data", "model", "adapter", "optimizer"];
/** Maximum number of columns of settings. */
const MOST_SETTINGS = 12;

/** Abbreviations of settings' names. @type {Record<string, string>} */
const SHORT = { lr: "learning_rate", dim: "rank" };

/**
 * Finds runs: a word must occur in the name; `rank:16` or `rank=16` must match a setting.
 * @param {Summary[]} runs
 * @param {string} words
 * @param {string} state required state, empty for all
 * @param {Record<string, unknown>} common settings that are equal in all runs
 */
export function found(runs, words, state = "", common = {}) {
  const wanted = wordsIn(words);
  const fits = (
    /** @type {Summary} */ run,
    /** @type {typeof wanted[0]} */ { word, key, value },
  ) =>
    value === undefined
      ? run.id.toLowerCase().includes(word)
      : has({ ...common, ...run.settings }, key, value);
  return runs.filter(
    (run) => (!state || run.state === state) && wanted.every((one) => fits(run, one)),
  );
}

/**
 * The first setting's name in the search that matches no setting; empty if all match.
 * @param {Summary[]} runs @param {string} words @param {Record<string, unknown>} common
 */
export function unknownSetting(runs, words, common = {}) {
  const names = new Set(
    [common, ...runs.map(({ settings }) => settings ?? {})].flatMap(Object.keys),
  );
  const asked = wordsIn(words).filter(({ key, value }) => key && value !== undefined);
  return asked.find(({ key }) => ![...names].some((name) => name.startsWith(key)))?.key ?? "";
}

/** @param {string} words */
function wordsIn(words) {
  const all = words.toLowerCase().split(/\s+/).filter(Boolean);
  return all.map((word) => {
    const [key, value] = word.split(/[:=]/);
    return { word, key: SHORT[key] ?? key, value };
  });
}

/**
 * Whether the setting `key`, or a setting whose name starts with `key`, has the value.
 * @param {Record<string, unknown>} settings @param {string} key @param {string} value
 */
function has(settings, key, value) {
  if (!key) return false;
  if (Object.hasOwn(settings, key)) return same(settings[key], value);
  return Object.entries(settings).some(([name, own]) => name.startsWith(key) && same(own, value));
}

/** @param {unknown} own @param {string} value */
function same(own, value) {
  if (typeof own === "number") return own === Number(value);
  return String(own).toLowerCase().startsWith(value);
}

/**
 * The settings that differ within a group, in any group.
 * @param {Group[]} groups
 * @param {number} most
 * @returns {string[]}
 */
export function differing(groups, most = MOST_SETTINGS) {
  /** @type {Set<string>} */
  const keys = new Set();
  for (const { runs } of groups) {
    const [first, ...others] = runs.map((run) => run.settings ?? {});
    for (const other of others)
      for (const key of [...Object.keys(first), ...Object.keys(other)])
        if (!keys.has(key) && text(first[key]) !== text(other[key])) keys.add(key);
  }
  const rank = (/** @type {string} */ key) =>
    FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length;
  return [...keys].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b)).slice(0, most);
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "object" ? JSON.stringify(value ?? null) : String(value ?? null);
}

/** @param {Group[]} groups @returns {Column[]} */
export function columnsOf(groups) {
  const known = (/** @type {string} */ key) =>
    groups.some(({ runs }) => runs.some((run) => (figureOf(run, key) ?? null) !== null));
  return [
    ...STANDING.filter(known).map((key) => ({ key, setting: false })),
    ...differing(groups).map((key) => ({ key, setting: true })),
    ...OUTCOMES.filter(known).map((key) => ({ key, setting: false })),
  ];
}

/** The differing values of two runs: results first, then settings. @param {Summary} one @param {Summary} other */
export function between(one, other) {
  const results = [...STANDING, ...OUTCOMES].filter((key) => key !== "updated");
  const keys = [...results, ...differing([{ name: "", runs: [one, other] }], Infinity)];
  return [...new Set(keys)].filter(
    (key) => text(figureOf(one, key)) !== text(figureOf(other, key)),
  );
}

/** @param {Summary} run @param {string} key @returns {any} */
export function figureOf(run, key) {
  if (key === "step") return stepOf(run);
  return run.settings?.[key] ?? /** @type {any} */ (run)[key];
}

/** The best value of a column in which lower is better; null if all are equal. @param {string} key @param {Summary[]} runs */
export function bestOf(key, runs) {
  if (!LOWER_IS_BETTER.includes(key)) return null;
  const numbers = runs.map((run) => figureOf(run, key)).filter((one) => typeof one === "number");
  return new Set(numbers).size > 1 ? Math.min(...numbers) : null;
}

/**
 * Groups runs by their requested name, without the suffixes of sweep values, later runs of the same name, and averages.
 * Groups are in the order of their first runs.
 * @param {Summary[]} runs
 * @returns {Group[]}
 */
export function grouped(runs) {
  /** @type {Map<string, Summary[]>} */
  const groups = new Map();
  const settings = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})));
  for (const run of runs) {
    const plain = run.id.replace(/(?:_\d{3}|_ema[\d.]+)+$/, "");
    const swept = [...settings].map((key) => plain.indexOf(`_${key}_`)).filter((at) => at > 0);
    const name = plain.slice(0, Math.min(plain.length, ...swept));
    const group = groups.get(name);
    if (group) group.push(run);
    else groups.set(name, [run]);
  }
  return [...groups].map(([name, members]) => ({ name, runs: members }));
}

/**
 * The runs sorted by a column, unknown values last. The sort is stable, so that sorting by a setting groups equal runs.
 * @param {Summary[]} runs
 * @param {Order | null} order
 */
export function sorted(runs, order) {
  if (!order) return runs;
  const { key, down } = order;
  return [...runs].sort((one, other) => compare(figureOf(one, key), figureOf(other, key), down));
}

const words = new Intl.Collator(undefined, { numeric: true });

/** @param {any} one @param {any} other @param {boolean} down */
function compare(one, other, down) {
  const missing = (/** @type {any} */ value) => value === null || value === undefined;
  if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other));
  const numbers = typeof one === "number" && typeof other === "number";
  const rank = numbers ? one - other : words.compare(String(one), String(other));
  return down ? -rank : rank;
}
