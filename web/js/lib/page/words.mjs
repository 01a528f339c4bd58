// @ts-check
/**
 * Translations. The code has English, `t("Save now")`; the key is that sentence in `locales/<language>/main.json` under
 * `wanTrainer`, for the server under `wanTrainerServer`, which ComfyUI serves at `/i18n`. Without translation the
 * English is shown.
 */

import { learnLabels } from "./labels.mjs";

/** @type {Record<string, string>} */
let known = {};

/** Whether the page's language has a sentence. @param {string} sentence in English */
export function isTranslated(sentence) {
  return Object.hasOwn(known, sentence);
}

/**
 * A sentence in the language of the page.
 * @param {string} sentence in English; `{name}` is replaced by `values.name`
 * @param {Record<string, string | number>} values
 */
export function t(sentence, values = {}) {
  const text = Object.hasOwn(known, sentence) ? known[sentence] : sentence;
  return text.replace(/\{(\w+)\}/g, (hole, name) =>
    Object.hasOwn(values, name) ? String(values[name]) : hole,
  );
}

/**
 * Singular or plural: `counted(n, "1 run", "{n} runs")`.
 * @param {number} n how many; `{n}` in both
 * @param {string} one in English
 * @param {string} several in English
 * @param {Record<string, string | number>} values of other placeholders
 */
export function counted(n, one, several, values = {}) {
  return t(n === 1 ? one : several, { ...values, n });
}

/**
 * Joins sentences to one text. Chinese and Japanese put no space after a full stop.
 * @param {(string | false | null | undefined | 0)[]} said falsy values are skipped
 */
export function inOneText(said) {
  return said.filter(Boolean).join(" ").replaceAll("。 ", "。");
}

/**
 * Replaces the translations, by English sentence.
 * @param {unknown} translations values that are no texts are skipped
 */
export function learn(translations) {
  const pairs = Object.entries(translations ?? {}).filter(([, text]) => typeof text === "string");
  known = Object.fromEntries(pairs);
}

/**
 * Languages to try, best first: the requested one, then its base language if the script is the same. Traditional Chinese
 * (`zh-TW`) does not fall back to simplified Chinese (`zh`); Mexican Spanish falls back to Spanish.
 * @param {string} locale as ComfyUI names it: "en", "ja", "zh-TW"
 * @returns {string[]}
 */
export function wanted(locale) {
  try {
    const { language, script } = new Intl.Locale(locale).maximize();
    const same = script === new Intl.Locale(language).maximize().script;
    return same ? [locale, language] : [locale];
  } catch {
    return [locale]; // not a valid language tag
  }
}

/**
 * Requests the translations from ComfyUI once. Without a response the page stays English.
 * @param {(path: string) => Promise<Response>} fetchApi
 * @param {string} locale as ComfyUI names it
 */
export async function loadWords(fetchApi, locale) {
  try {
    const all = await (await fetchApi("/i18n")).json();
    const found = wanted(locale).find((name) => all?.[name]?.wanTrainer);
    learn(found && { ...all[found].wanTrainerServer, ...all[found].wanTrainer });
    if (found && !found.startsWith("en")) learnLabels(all[found].nodeDefs, found);
  } catch (error) {
    console.warn("[WanTrainer] No translations:", error);
  }
}

/** Languages, besides English, with files for `loadList`. */
const LANGUAGES = ["es", "ja", "ko", "zh"];

/**
 * Longer texts, English -> translation, from a file of the page's language in a folder of web/js; null for English, or
 * without a response.
 * @param {(address: URL) => Promise<Response>} fetchFile
 * @param {string} folder
 * @param {string} locale as ComfyUI names it
 * @returns {Promise<unknown>}
 */
export async function loadList(fetchFile, folder, locale) {
  const language = wanted(locale).find((name) => LANGUAGES.includes(name));
  if (!language) return null;
  try {
    const answer = await fetchFile(new URL(`../../${folder}/${language}.json`, import.meta.url));
    return answer.ok ? await answer.json() : null;
  } catch (error) {
    console.warn(`[WanTrainer] The ${folder} stay English:`, error);
    return null;
  }
}
