import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import {
  counted,
  inOneText,
  learn,
  loadWords,
  t,
  wanted,
} from "../../../web/js/lib/page/words.mjs";

afterEach(() => learn({}));

const serve = (body) => async () => new Response(JSON.stringify(body));

test("a sentence without a translation stays as it is", () => {
  assert.equal(t("Save now"), "Save now");
});

test("values fill the holes of the translation, in its own order", () => {
  learn({ "{done} of {all}": "{all} のうち {done}" });
  assert.equal(t("{done} of {all}", { done: 1, all: 3 }), "3 のうち 1");
  assert.equal(t("step {step}", {}), "step {step}");
});

test("one and several are two sentences, each with its own translation", () => {
  const runs = (n) => counted(n, "{name}, 1 run", "{name}, {n} runs", { name: "fox" });
  assert.deepEqual([1, 0, 2].map(runs), ["fox, 1 run", "fox, 0 runs", "fox, 2 runs"]);
  learn({ "{name}, 1 run": "{name}: 1 回", "{name}, {n} runs": "{name}: {n} 回" });
  assert.deepEqual([1, 2].map(runs), ["fox: 1 回", "fox: 2 回"]);
});

test("names of object methods are no translations", () => {
  learn({ "Save now": 3, Stop: "停止" });
  assert.equal(t("toString"), "toString");
  assert.equal(t("Save now"), "Save now");
  assert.equal(t("Stop"), "停止");
  assert.equal(t("{constructor}"), "{constructor}");
});

test("the words of the page's language are asked for once", async () => {
  await loadWords(serve({ ja: { wanTrainer: { Stop: "停止" } }, ko: {} }), "ja");
  assert.equal(t("Stop"), "停止");
});

test("a page without an answer stays English", async () => {
  await loadWords(serve({ ko: {} }), "ja");
  assert.equal(t("Stop"), "Stop");
});

test("a country's words are looked for first, then its language's where the script is the same", () => {
  assert.deepEqual(wanted("es-MX"), ["es-MX", "es"]);
  assert.deepEqual(wanted("zh-CN"), ["zh-CN", "zh"]);
  assert.deepEqual(wanted("zh-Hans-HK"), ["zh-Hans-HK", "zh"]);
  assert.deepEqual(wanted("zh-TW"), ["zh-TW"]);
  assert.deepEqual(wanted("zh-Hant"), ["zh-Hant"]);
  assert.deepEqual(wanted("no language!"), ["no language!"]);
});

test("traditional Chinese stays English until somebody translates it, other countries read their language", async () => {
  const served = serve({ zh: { wanTrainer: { Stop: "停止" } }, "zh-TW": { other: {} } });
  await loadWords(served, "zh-TW");
  assert.equal(t("Stop"), "Stop");
  await loadWords(served, "zh-SG");
  assert.equal(t("Stop"), "停止");
  await loadWords(serve({ "zh-TW": { wanTrainer: { Stop: "停止鍵" } } }), "zh-TW");
  assert.equal(t("Stop"), "停止鍵");
});

test("sentences become one text, without a space behind the full stop of Chinese and Japanese", () => {
  assert.equal(inOneText(["One.", "", false, "Two."]), "One. Two.");
  assert.equal(inOneText(["一。", "二。"]), "一。二。");
});
