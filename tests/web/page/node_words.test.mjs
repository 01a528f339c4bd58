import assert from "node:assert/strict";
import { test } from "node:test";

import {
  findMessages,
  keepMerged,
  keepNodeWords,
  nameTextBoxes,
} from "../../../web/js/lib/page/node_words.mjs";

const OURS = { nodeDefs: { TrainLoRA: { display_name: "Wan LoRA の学習" } } };
const CORE = { nodeDefs: { KSampler: { display_name: "Kサンプラー" } } };

/** What a page keeps texts in, with the calls that merge counted. */
class Page {
  merged = [];
  texts;

  constructor(texts = { en: {} }) {
    this.texts = texts;
    this.te = (key, locale) => this.read(key, locale) !== undefined;
    this.setLocaleMessage = (locale, messages) => {
      this.texts[locale] = structuredClone(messages);
    };
    this.mergeLocaleMessage = (locale, messages) => {
      this.merged.push(locale);
      this.texts[locale] ??= {};
      for (const [part, nodes] of Object.entries(messages)) {
        this.texts[locale][part] = { ...this.texts[locale][part], ...nodes };
      }
    };
  }

  get availableLocales() {
    return Object.keys(this.texts);
  }

  read(key, locale) {
    return key.split(".").reduce((found, part) => found?.[part], this.texts[locale]);
  }

  /** As Vue notes it. */
  get app() {
    return {
      _context: { provides: { [Symbol("router")]: {}, [Symbol("i18n")]: { global: this } } },
    };
  }
}

const serve = (body) => async () => new Response(JSON.stringify(body));
const TITLE = "nodeDefs.TrainLoRA.display_name";

test("a language that is loaded later keeps the words of our nodes, and its own", async () => {
  const page = new Page();
  await keepNodeWords(page.app, serve({ ja: OURS }));
  assert.equal(page.te(TITLE, "ja"), false);
  page.setLocaleMessage("ja", CORE);
  assert.equal(page.read(TITLE, "ja"), "Wan LoRA の学習");
  assert.equal(page.read("nodeDefs.KSampler.display_name", "ja"), "Kサンプラー");
});

test("a node has its words under its second id too", async () => {
  const page = new Page();
  await keepNodeWords(
    page.app,
    serve({ ja: { nodeDefs: { ...OURS.nodeDefs, ...CORE.nodeDefs } } }),
  );
  page.setLocaleMessage("ja", CORE);
  assert.equal(page.read("nodeDefs.WanTrainer_TrainLoRA.display_name", "ja"), "Wan LoRA の学習");
  assert.equal(page.te("nodeDefs.WanTrainer_KSampler.display_name", "ja"), false);
});

test("a language that was loaded over our words gets them back", async () => {
  const page = new Page({ en: {}, ja: CORE });
  await keepNodeWords(page.app, serve({ ja: OURS }));
  assert.equal(page.read(TITLE, "ja"), "Wan LoRA の学習");
});

test("a page that kept our words is left alone", () => {
  const kept = { nodeDefs: { WanTrainer_TrainLoRA: OURS.nodeDefs.TrainLoRA } };
  const page = new Page({ ja: kept });
  keepMerged(page, { ja: kept });
  assert.deepEqual(page.merged, []);
});

test("a language nobody translated into stays as it was loaded", () => {
  const page = new Page();
  keepMerged(page, { ja: OURS });
  page.setLocaleMessage("ru", CORE);
  assert.deepEqual(page.texts.ru, CORE);
});

test("a page that is built another way, or does not answer, is no error", async (context) => {
  const warned = context.mock.method(console, "warn", () => {});
  for (const app of [
    undefined,
    {},
    { _context: {} },
    { _context: { provides: { [Symbol("i")]: null } } },
  ]) {
    assert.equal(findMessages(app), null);
    await keepNodeWords(app, () => assert.fail("asked"));
  }
  await keepNodeWords(new Page().app, async () => {
    throw new Error("gone");
  });
  assert.equal(warned.mock.callCount(), 1);
});

test("an empty text box is named in the page's language, one with words of its own keeps them", () => {
  const box = { placeholder: "prompts" };
  const own = { placeholder: "blocks" };
  const example = { placeholder: "rank_patterns: blocks = 32" };
  const unnamed = { placeholder: "captions" };
  nameTextBoxes({
    widgets: [
      { name: "prompts", label: "プロンプト", element: box },
      { name: "lora_targets", label: "LoRA の対象層", element: own },
      { name: "rank_patterns", label: "層ごとのランク", element: example },
      { name: "captions", element: unnamed },
      { name: "steps", label: "ステップ数" },
    ],
  });
  nameTextBoxes({});
  assert.deepEqual(
    [box, own, example, unnamed].map(({ placeholder }) => placeholder),
    ["プロンプト", "blocks", "層ごとのランク: blocks = 32", "captions"],
  );
});
