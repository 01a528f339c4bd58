import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { afterEach, test } from "node:test";

import { translateTitle } from "../../../web/js/lib/page/titles.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";

const ROOT = new URL("../../../", import.meta.url);
const read = (place) => JSON.parse(readFileSync(new URL(place, ROOT), "utf8"));
const templates = readdirSync(new URL("workflows/", ROOT)).filter((name) => name.endsWith(".json"));
const nodes = templates.flatMap((name) => read(`workflows/${name}`).nodes);
const titled = nodes.filter((node) => node.title);

afterEach(() => learn({}));

test("every title that a template gives a node is known, and said in each language", () => {
  assert.ok(titled.length >= 17, String(titled.length));
  for (const language of ["zh", "ja", "ko", "es"]) {
    const { wanTrainer } = read(`locales/${language}/main.json`);
    learn(wanTrainer);
    for (const node of titled) {
      const shown = structuredClone(node);
      translateTitle(shown);
      assert.notEqual(shown.title, node.title, `${language}: ${node.title}`);
      assert.equal(shown.title, wanTrainer[node.title]);
    }
  }
});

test("a node keeps a name of its own: one that somebody gave it, in a template or anywhere else", () => {
  learn({ Prompt: "提示词" });
  const titleOf = (node) => {
    translateTitle(node);
    return node.title;
  };
  const marked = (title) => ({ title, properties: { wan_trainer_title: "Prompt" } });
  assert.equal(titleOf(marked("Prompt")), "提示词");
  assert.equal(titleOf(marked("My prompt")), "My prompt");
  assert.equal(titleOf({ title: "Prompt", properties: {} }), "Prompt");
  assert.equal(titleOf({ title: "Prompt" }), "Prompt");
  const later = { title: "Of tomorrow", properties: { wan_trainer_title: "Of tomorrow" } };
  assert.equal(titleOf(later), "Of tomorrow");
  learn({});
  assert.equal(titleOf(marked("Prompt")), "Prompt", "English");
});

test("a graph saved in one language has the titles of the next page's, and no trace of them in English", () => {
  const [node] = titled;
  const shown = structuredClone(node);
  for (const title of ["一", "二", node.title]) {
    learn({ [node.title]: title });
    translateTitle(shown);
    assert.equal(shown.title, title);
  }
  assert.deepEqual(shown, node);
  learn({ [node.title]: "一" });
  translateTitle(shown);
  shown.title = "Mine";
  translateTitle(shown);
  assert.equal(shown.title, "Mine");
});
