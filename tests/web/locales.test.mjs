import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { settings } from "../../web/js/lib/page/settings.mjs";

const ROOT = new URL("../../", import.meta.url);
const WEB = new URL("web/js/", ROOT);
const TRANSLATED = ["zh", "ja", "ko", "es"];

/** What may read the same in another language, and why. */
const SAME = {
  es: {
    timestep: "the field's own word in Spanish too",
    timesteps: "the field's own word in Spanish too",
    log: "the same abbreviation",
    "prompt {n}": "the field's own word in Spanish too",
    "{days} d {hours} h": "symbols of units",
  },
};

/** Code inside of a template. */
const HOLE = /\$\{(?:[^{}]|\{[^{}]*\})*\}/g;

/** Texts with blanks that nobody reads. */
const NOT_READ = [
  /^pi pi-[a-z-]+$/, // an icon's classes
  /^\d+px sans-serif$/, // the font of a canvas
  /^(skip the file|empty caption)$/, // values of a widget
  /^\[WanTrainer\] /, // said in the console, for who mends the pack
];

const code = (name) =>
  readFileSync(new URL(name, WEB), "utf8")
    .replace(/\/\*[\s\S]*?\*\//g, "")
    .replace(/^\s*\/\/.*$/gm, "");

const files = readdirSync(WEB, { recursive: true }).filter((name) => /\.m?js$/.test(name));
// words.mjs defines t, server_sentences.mjs finds what Python says; the texts of settings.mjs are translated by ComfyUI.
const spoken = files.filter((name) => !/(words|settings|server_sentences)\.mjs$/.test(name));
/** A call with one sentence, or with that about one thing and that about several; the last group is what is given. */
const CALL = /(?<![\w.$])(?:t\(|(counted)\([^,()"]+,)\s*/g;
const LITERAL = /"(?:[^"\\\n]|\\.)*"/y;

/** What every `t(` and `counted(` of a file is given: sentences, or null for what is no plain text. */
function sentences(text) {
  return [...text.matchAll(CALL)].flatMap((call) => {
    let at = call.index + call[0].length;
    const next = () => {
      LITERAL.lastIndex = at;
      const found = LITERAL.exec(text)?.[0] ?? "";
      const [end = ""] = text.slice(at + found.length).match(/^\s*[,)]\s*/) ?? [];
      at += found.length + end.length;
      return found && end ? JSON.parse(found) : null;
    };
    return call[1] ? [next(), next()] : [next()];
  });
}

const holes = (text) => [...text.matchAll(/\{\w+\}/g)].map(String).sort();

/** What is wrong with a language's words, one line each. */
function problems(known, translations, same = {}) {
  const missing = known.filter((one) => !Object.hasOwn(translations, one));
  const stale = Object.keys(translations).filter((one) => !known.includes(one));
  const told = Object.entries(translations);
  const torn = told.filter(([one, text]) => `${holes(one)}` !== `${holes(text)}`);
  const english = told.filter(([one, text]) => one === text && !Object.hasOwn(same, one));
  const empty = told.filter(([, text]) => !text.trim() || text !== text.trim());
  const needless = Object.keys(same).filter((one) => translations[one] !== one);
  return [
    ...missing.map((one) => `no translation: ${one}`),
    ...stale.map((one) => `nobody says: ${one}`),
    ...torn.map(([one]) => `other {holes}: ${one}`),
    ...english.map(([one]) => `still English: ${one}`),
    ...empty.map(([one]) => `empty, or blanks around it: ${one}`),
    ...needless.map((one) => `is allowed to be English and is not: ${one}`),
  ];
}

const read = (language, file) =>
  JSON.parse(readFileSync(new URL(`locales/${language}/${file}`, ROOT), "utf8"));

const said = [...new Set(spoken.flatMap((name) => sentences(code(name))))];

test("every text of the page is a plain sentence inside t(...)", () => {
  for (const name of spoken) {
    assert.ok(!sentences(code(name)).includes(null), `${name}: t() of something else than a text`);
  }
  assert.ok(said.length > 100, String(said.length));
});

test("no words stand outside of t(...)", () => {
  for (const name of spoken) {
    const bare = code(name)
      .replace(/\bcase "[^"\n]*":/g, "") // what is compared, never shown
      .replace(/(?<![\w.$])t\(\s*"(?:[^"\\\n]|\\.)*"/g, "")
      .replace(/(?<![\w.$])counted\([^,()"]+(?:,\s*"(?:[^"\\\n]|\\.)*"){2}/g, "");
    const texts = [...bare.matchAll(/"([^"\n]*)"|`([^`]*)`/g)].map(
      ([, text, mixed]) => text ?? mixed.replace(HOLE, ""),
    );
    const words = texts.filter((text) => /[A-Za-z]{2,} [A-Za-z]{2,}/.test(text));
    assert.deepEqual(
      words.filter((text) => !NOT_READ.some((pattern) => pattern.test(text))),
      [],
      name,
    );
  }
});

for (const language of TRANSLATED) {
  test(`everything the page says is said in ${language}`, () => {
    assert.deepEqual(problems(said, read(language, "main.json").wanTrainer, SAME[language]), []);
  });
}

/** The English of the settings page, in the shape of a settings.json; dots of an id are underscores there. */
const SETTINGS = Object.fromEntries(
  settings(() => {}).map(({ id, name, tooltip, options }) => [
    id.replaceAll(".", "_"),
    {
      name,
      tooltip,
      ...(options && { options: Object.fromEntries(options.map(({ text }) => [text, text])) }),
    },
  ]),
);

/** Every text of a tree by its place. */
const leaves = (tree, place = "") =>
  Object.entries(tree).flatMap(([key, value]) =>
    typeof value === "string" ? [[`${place}/${key}`, value]] : leaves(value, `${place}/${key}`),
  );

for (const language of TRANSLATED) {
  test(`every setting has its words in ${language}`, () => {
    const translated = Object.fromEntries(leaves(read(language, "settings.json")));
    const english = leaves(SETTINGS);
    assert.deepEqual(Object.keys(translated).sort(), english.map(([place]) => place).sort());
    for (const [place, text] of english) {
      assert.notEqual(translated[place], text, place);
      assert.ok(translated[place].trim(), place);
    }
  });

  test(`the headings of the settings page have their words in ${language}`, () => {
    const headings = new Set(settings(() => {}).flatMap(({ category }) => category.slice(0, 2)));
    const { settingsCategories } = read(language, "main.json");
    assert.deepEqual(Object.keys(settingsCategories).sort(), [...headings].sort());
    for (const heading of headings) assert.notEqual(settingsCategories[heading], heading);
  });
}

for (const language of TRANSLATED) {
  test(`texts name nodes as they are called in ${language}`, () => {
    const [english, own] = ["en", language].map((one) => read(one, "nodeDefs.json"));
    const settingsOf = Object.fromEntries(leaves(read(language, "settings.json")));
    const pairs = [
      ...Object.entries(read(language, "main.json").wanTrainer),
      ...leaves(SETTINGS).map(([place, text]) => [text, settingsOf[place]]),
    ];
    let named = 0;
    for (const [id, { display_name: name }] of Object.entries(english)) {
      for (const [text, translated] of pairs.filter(([text]) => text.includes(name))) {
        named += 1;
        assert.ok(translated.includes(own[id].display_name), `${text}: ${own[id].display_name}`);
      }
    }
    assert.ok(named >= 3, String(named));
  });
}

test("English needs no list: the sentences in the code are English", () => {
  assert.equal(read("en", "main.json").wanTrainer, undefined);
});

test("the menu's category has a name in every language", () => {
  const [, category] = readFileSync(new URL("nodes/bridge/widgets.py", ROOT), "utf8").match(
    /"category": "(.+?)"/,
  );
  for (const language of ["en", ...TRANSLATED]) {
    const { nodeCategories } = read(language, "main.json");
    assert.deepEqual(Object.keys(nodeCategories), [category], language);
    assert.equal(nodeCategories[category] === category, language === "en", language);
  }
});

test("a missing, stale, torn, English or empty translation is noticed", () => {
  const good = { "Save {n}": "{n} を保存", log: "log" };
  const known = Object.keys(good);
  assert.deepEqual(problems(known, good, { log: "why" }), []);
  const { log: _, ...without } = good;
  assert.deepEqual(problems(known, without), ["no translation: log"]);
  assert.deepEqual(problems(["Save {n}"], good, { log: "why" }), ["nobody says: log"]);
  assert.deepEqual(problems(known, { ...good, "Save {n}": "保存" }, { log: "why" }), [
    "other {holes}: Save {n}",
  ]);
  assert.deepEqual(problems(known, good), ["still English: log"]);
  assert.deepEqual(problems(known, { ...good, log: " " }), ["empty, or blanks around it: log"]);
  assert.deepEqual(problems(known, { ...good, log: "対数" }, { log: "why" }), [
    "is allowed to be English and is not: log",
  ]);
});

test("one and several go through counted(...), which the lists of sentences know", () => {
  for (const name of spoken) {
    assert.doesNotMatch(code(name), /=== 1\s*\?\s*t\(/, name);
    // Nothing that `sentences` would pass over: a number that is worked out in the call, a spread.
    const calls = [...code(name).matchAll(/(?<![\w.$])counted\(/g)].length;
    const read = [...code(name).matchAll(CALL)].filter(([, plural]) => plural).length;
    assert.equal(read, calls, `${name}: counted() of something else than a name and two texts`);
  }
  assert.deepEqual(
    sentences('counted(n, "1 run", "{n} runs", { a: t("x") }) + counted(m, a, "b")'),
    ["1 run", "{n} runs", "x", null, null],
    "where the first is no plain text, neither is taken",
  );
});

test("a t() of anything but a plain text is noticed", () => {
  assert.deepEqual(sentences('a(t("One"), t(\n "Two {n}", { n: 1 }), start("x"), o.t("y"))'), [
    "One",
    "Two {n}",
  ]);
  assert.deepEqual(sentences('t(name) + t(`a`) + t("a" + b)'), [null, null, null]);
});
