import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { afterEach, test } from "node:test";
import { formOf, readForm } from "../../../web/js/lib/files/forms.mjs";
import {
  learnNotes,
  lineInWords,
  loadNotes,
  translateNote,
} from "../../../web/js/lib/files/read_me.mjs";
import { translateTitle } from "../../../web/js/lib/page/titles.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";

const ROOT = new URL("../../../", import.meta.url);
const LANGUAGES = ["zh", "ja", "ko", "es"];
const read = (place) => JSON.parse(readFileSync(new URL(place, ROOT), "utf8"));
const listOf = (language) => read(`web/js/notes/${language}.json`);
const wordsOf = (language) => read(`locales/${language}/main.json`).wanTrainer;

const templates = readdirSync(new URL("workflows/", ROOT)).filter((name) => name.endsWith(".json"));
const notes = templates.flatMap((name) =>
  read(`workflows/${name}`).nodes.filter(({ type }) => type === "MarkdownNote"),
);
const CODE = /\*\*[^* ]*[._/][^* ]*\*\*/g;
const written = [...new Set(notes.flatMap((note) => note.widgets_values[0].split("\n")))];
/** Without those that read the same in every language: names of files alone. */
const lines = written.filter((line) => /\p{L}/u.test(line.replace(CODE, "")));

/** A note as it stands on the canvas. */
const onCanvas = ({ type, title, properties, widgets_values: [value] }) => ({
  type,
  title,
  properties: structuredClone(properties),
  widgets: [{ value }],
});
/** What is saved of it. */
const saved = ({ type, title, properties, widgets: [{ value }] }) => ({
  type,
  title,
  properties,
  widgets_values: [value],
});

/** Open a note on a page of a language. */
function opened(note, language) {
  learn(language === "en" ? {} : wordsOf(language));
  learnNotes(language === "en" ? {} : listOf(language));
  const node = onCanvas(note);
  translateTitle(node);
  translateNote(node);
  return node;
}

afterEach(() => {
  learn({});
  learnNotes({});
});

test("each note of a template says by a property that it is ours", () => {
  assert.ok(templates.length >= 8 && lines.length > 60, `${templates.length}, ${lines.length}`);
  for (const { title, properties } of notes) {
    assert.deepEqual([title, properties], ["Read me", { wan_trainer_title: "Read me" }]);
  }
});

test("the text of this pack's notes is enlarged, and that of no other note", () => {
  const enlarged = (bgcolor) => {
    const names = [];
    const element = { classList: { add: (name) => names.push(name) } };
    translateNote({ type: "MarkdownNote", bgcolor, widgets: [{ value: "A line", element }] });
    return names;
  };
  for (const { bgcolor } of notes) assert.deepEqual(enlarged(bgcolor), ["wan-note"]);
  assert.deepEqual(enlarged("#653"), []);
});

for (const language of LANGUAGES) {
  const list = listOf(language);
  const pairs = Object.entries(list);

  test(`every line of every template's note is said in ${language}`, () => {
    learnNotes(list);
    assert.deepEqual(
      lines.filter((line) => lineInWords(line) === line),
      [],
      "no translation",
    );
    const forms = Object.keys(list);
    const stale = forms.filter((form) => !lines.some((line) => readForm(formOf(form), line)));
    assert.deepEqual(stale, [], "no template says it");
    const said = lines.map(lineInWords);
    assert.equal(new Set(said).size, lines.length, "two lines said alike");
  });

  test(`what is no word stays in ${language}: holes, code, figures, Markdown at the start`, () => {
    const plain = (text) => text.replace(CODE, "").replace(/\{\w+\}/g, "");
    const parts = (text) => ({
      holes: [...text.matchAll(/\{\w+\}/g)].map(String).sort(),
      code: [...text.matchAll(CODE)].map(String).sort(),
      bold: text.split("**").length,
      start: text.match(/^(## |- |\d+\. |\*\*|)/)[0],
    });
    for (const [english, said] of pairs) {
      assert.deepEqual(parts(said), parts(english), english);
      assert.equal(said, said.trim());
      for (const [figure] of plain(english).matchAll(/\d[\d.x]*\b/g))
        assert.ok(plain(said).includes(figure), `${english}: ${figure}`);
    }
  });

  test(`notes name nodes, widgets and buttons as they are called in ${language}`, () => {
    const [english, own] = ["en", language].map((one) => read(`locales/${one}/nodeDefs.json`));
    const words = wordsOf(language);
    const short = (title) => title.split(/ ?(?:[(（]| \+ )/)[0];
    /** Our titles by what stands in italics; a label by the name of its input. */
    const titles = new Map();
    const labels = new Map();
    for (const [id, { display_name, inputs }] of Object.entries(english)) {
      titles.set(short(display_name), short(own[id].display_name));
      for (const name of Object.keys(inputs ?? {})) {
        const found = labels.get(name) ?? new Set();
        labels.set(name, found.add(own[id].inputs[name].name));
      }
    }
    for (const word of ["Prompt", "Stop and keep", "Undo"]) titles.set(word, words[word]);
    /** ComfyUI's own words: the notes of a language agree on them. */
    const others = new Map();
    for (const [text, said] of pairs) {
      for (const [, title] of text.matchAll(/(?<!\*)\*([^*]+)\*(?!\*)/g)) {
        if (titles.has(title)) assert.ok(said.includes(titles.get(title)), `${text}: ${title}`);
        else others.set(title, [...(others.get(title) ?? []), said]);
      }
      for (const [, name] of text.matchAll(/`(\w+)`/g)) {
        const label = [...(labels.get(name) ?? [])];
        if (label.length)
          assert.ok(
            label.some((one) => said.includes(one)),
            `${text}: ${name}`,
          );
      }
    }
    assert.deepEqual([...others.keys()].sort(), [
      "Bernini Conditioning",
      "Enter app mode",
      "Generate Text",
      "Load CLIP",
      "Load CLIP Vision",
      "Load Image",
    ]);
  });

  test(`a template opened in ${language} is in ${language}, its figures in place`, () => {
    for (const note of notes) {
      const node = opened(note, language);
      const [before] = note.widgets_values;
      assert.equal(node.title, wordsOf(language)["Read me"]);
      assert.equal(node.widgets[0].value.split("\n").length, before.split("\n").length);
      const figures = (text) => [...text.matchAll(/\d+\.\d+(?: \(\d+\))?/g)].map(String);
      assert.deepEqual(figures(node.widgets[0].value), figures(before));
    }
  });
}

test("a line that somebody wrote or changed stays, in a template and in a saved graph", () => {
  const [heading, , files] = notes[1].widgets_values[0].split("\n");
  const own = [
    "My own line",
    `${files} and my own`,
    "- 12 GB card: pictures look good to me",
    "- 12 GB card: 33 frames 7.7, 49 frames are too many, 81 frames 10.5",
    "Cancel saves and stops; I press Run again. Cancel saves and stops; Run again resumes it.",
    "",
  ];
  const changed = { ...notes[1], widgets_values: [[heading, ...own, files].join("\n")] };
  const list = listOf("zh");
  const inChinese = opened(changed, "zh");
  assert.deepEqual(inChinese.widgets[0].value.split("\n"), [list[heading], ...own, list[files]]);

  const kept = saved(inChinese);
  kept.widgets_values[0] = kept.widgets_values[0].replace(list[files], "我自己的一行");
  const again = opened(kept, "ko");
  const korean = listOf("ko");
  assert.deepEqual(again.widgets[0].value.split("\n"), [korean[heading], ...own, "我自己的一行"]);
});

test("a graph saved in one language has its note in the next page's, and in English as it was", () => {
  for (const note of notes) {
    let node = opened(note, "zh");
    for (const language of ["zh", "ja", "es"]) {
      node = opened(saved(node), language);
      assert.deepEqual(node, opened(note, language), language);
    }
    assert.deepEqual(saved(opened(saved(node), "en")), saved(onCanvas(note)));
  }
});

test("a figure of tomorrow is said too", () => {
  learnNotes(listOf("es"));
  assert.equal(
    lineInWords("- 48 GB card: 17 frames 9.1 (3), 21 frames 12.0, 29 frames 30.5 (40)"),
    "- Tarjeta de 48 GB: 17 fotogramas 9.1 (3), 21 fotogramas 12.0, 29 fotogramas 30.5 (40)",
  );
});

test("a note of somebody else is not touched, whatever it says; nor are properties that are none", () => {
  const [, note] = notes;
  const theirs = opened({ ...note, properties: {} }, "zh");
  assert.deepEqual(saved(theirs), saved(onCanvas({ ...note, properties: {} })));
  const named = opened({ ...note, title: "My notes" }, "zh");
  assert.equal(named.title, "My notes");
  for (const strange of ["text", 7, null, ["x"], { [note.widgets_values[0]]: 3 }]) {
    const properties = { ...note.properties, wan_trainer_english: strange };
    assert.deepEqual(opened({ ...note, properties }, "zh"), opened(note, "zh"));
  }
  for (const node of [{ properties: note.properties }, { widgets: [] }])
    translateNote({ type: note.type, ...node });
});

test("an English page asks for no list, and one without an answer stays English", async () => {
  const asked = [];
  const answer = (language) => async (address) => {
    asked.push(address.pathname.split("/").slice(-2).join("/"));
    if (!language) throw new Error("offline");
    return { ok: true, json: async () => listOf(language) };
  };
  const before = console.warn;
  console.warn = () => {};
  for (const [locale, language] of [["en"], ["zh-TW"], ["zh", "zh"], ["ja"]]) {
    await loadNotes(answer(language), locale);
    assert.equal(lineInWords("**Steps**"), language ? "**步骤**" : "**Steps**", locale);
  }
  console.warn = before;
  assert.deepEqual(asked, ["notes/zh.json", "notes/ja.json"]);
});
