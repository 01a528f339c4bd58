// @ts-check
/**
 * Names and tooltips of nodes. The page merges `locales/` of packs itself (`/i18n`), but frontends as old as 1.32 load
 * the language later and overwrite them; there they are merged again after each load. Newer frontends keep them.
 */

import { OURS, PREFIX } from "./ids.mjs";

/**
 * @typedef {Object} Messages the used part of vue-i18n
 * @property {string[]} availableLocales
 * @property {(locale: string, messages: any) => void} setLocaleMessage
 * @property {(locale: string, messages: any) => void} mergeLocaleMessage
 * @property {(key: string, locale: string) => boolean} te whether a language has a text
 */

/** A key that all languages of this pack have, and ComfyUI's own files do not. */
const KNOWN_BY = `nodeDefs.${PREFIX}TrainLoRA.display_name`;

/**
 * The page's vue-i18n object; null if this frontend has it elsewhere.
 * @param {any} vueApp Vue's app object at its mount element
 * @returns {Messages | null}
 */
export function findMessages(vueApp) {
  const provided = vueApp?._context?.provides ?? {};
  const global = Object.getOwnPropertySymbols(provided)
    .map((key) => provided[key]?.global)
    .find((found) => typeof found?.mergeLocaleMessage === "function");
  const whole = typeof global?.setLocaleMessage === "function" && typeof global.te === "function";
  return whole ? global : null;
}

/**
 * Merges `words` now, and again after each loaded language, if they are missing then.
 * @param {Messages} messages
 * @param {Record<string, any>} words by language, from `/i18n`
 */
export function keepMerged(messages, words) {
  const merge = (/** @type {string} */ locale) => {
    if (Object.hasOwn(words, locale) && !messages.te(KNOWN_BY, locale)) {
      messages.mergeLocaleMessage(locale, words[locale]);
    }
  };
  const load = messages.setLocaleMessage;
  messages.setLocaleMessage = (locale, loaded) => {
    load(locale, loaded);
    merge(locale);
  };
  messages.availableLocales.forEach(merge);
}

/**
 * Adds the translations of our nodes under their second ids.
 * @param {Record<string, any>} words by language
 */
function withSecondIds(words) {
  const twice = (/** @type {Record<string, any>} */ nodes) =>
    Object.entries(nodes ?? {}).filter(([id]) => OURS.includes(id));
  return Object.fromEntries(
    Object.entries(words ?? {}).map(([locale, said]) => {
      const second = twice(said?.nodeDefs).map(([id, node]) => [`${PREFIX}${id}`, node]);
      return [locale, { ...said, nodeDefs: { ...said?.nodeDefs, ...Object.fromEntries(second) } }];
    }),
  );
}

/**
 * Await it before the page registers nodes. It does nothing without a response, or if the frontend differs.
 * @param {any} vueApp
 * @param {(path: string) => Promise<Response>} fetchApi
 */
export async function keepNodeWords(vueApp, fetchApi) {
  const messages = findMessages(vueApp);
  if (!messages) return;
  try {
    keepMerged(messages, withSecondIds(await (await fetchApi("/i18n")).json()));
  } catch (error) {
    console.warn("[WanTrainer] No translations of nodes:", error);
  }
}

/**
 * Translates the placeholder of a text box. The canvas sets it to the input's id; an example may follow.
 * @param {{ widgets?: any[] }} node
 */
export function nameTextBoxes(node) {
  for (const { name, label, element } of node.widgets ?? []) {
    const inside = String(element?.placeholder ?? "");
    if (label && (inside === name || inside.startsWith(`${name}: `)))
      element.placeholder = `${label}${inside.slice(name.length)}`;
  }
}
