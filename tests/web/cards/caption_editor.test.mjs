// @ts-check
/** A clip that is opened again shows what was saved of it, in whatever order the server answers. */

import assert from "node:assert/strict";
import { test } from "node:test";

/** An element with as much as the editor asks of one. */
class Stand {
  hidden = false;
  textContent = "";
  value = "";
  style = {};
  /** @type {any[]} */
  kids = [];
  /** @type {Record<string, (event: any) => void>} */
  heard = {};
  /** @type {Record<string, string>} */
  marks = {};
  addEventListener(/** @type {string} */ name, /** @type {any} */ act) {
    this.heard[name] = act;
  }
  setAttribute(/** @type {string} */ name, /** @type {string} */ value) {
    this.marks[name] = value;
  }
  getAttribute(/** @type {string} */ name) {
    return this.marks[name] ?? null;
  }
  replaceChildren(/** @type {any[]} */ ...kids) {
    this.kids = kids;
  }
  querySelector() {
    return null;
  }
  closest() {
    return this;
  }
  focus() {}
  setPointerCapture() {}
  getBoundingClientRect() {
    return { width: 100, height: 100 };
  }
}
Object.assign(globalThis, {
  HTMLVideoElement: class extends Stand {},
  document: { createElement: () => new Stand() },
});

/** Ends what was begun, as far as no answer is missing. */
const idle = () => new Promise((done) => setTimeout(done, 5));

/** An editor of two clips, and the questions of it that wait for an answer: `answer` answers the one of that number. */
async function opened() {
  const { CaptionEditor } = await import("../../../web/js/lib/cards/caption_editor.mjs");
  /** @type {any[]} */
  const saved = [{}, {}];
  /** @type {{ asked: string, give: () => void }[]} */
  const waiting = [];
  const clip = (/** @type {number} */ number) => ({
    ...{ clip: number, name: `clip ${number}`, caption: "seen", picture: true, duration_s: 4 },
    bucket: { num_frames: 1, width: 64, height: 64 },
    choice: saved[number],
  });
  const later = (/** @type {string} */ asked, /** @type {any} */ answer) =>
    new Promise((done) => waiting.push({ asked, give: () => done(answer) }));
  /** @type {any[]} */
  const written = [];
  const doors = {
    address: () => "",
    caption: (/** @type {any} */ _, /** @type {number} */ number) =>
      later(`read ${number}`, clip(number)),
    choose: (
      /** @type {any} */ _,
      /** @type {number} */ number,
      /** @type {any} */ was,
      /** @type {any} */ now,
    ) => {
      written.push([number, was, now]);
      saved[number] = now;
      return later(`save ${number}`, { change: 1, caption: clip(number) });
    },
  };
  const nothing = () => {};
  const memory = { keep: nothing, drafts: new Map() };
  const calls = { resized: nothing, changed: nothing, pressed: nothing, without: () => [] };
  const editor = new CaptionEditor(
    /** @type {any} */ ({ scan: "s", fps: 16, doors, memory, ...calls }),
  );
  const answer = async (/** @type {string} */ asked) => {
    await idle();
    const at = waiting.findIndex((one) => one.asked === asked);
    assert.ok(at >= 0, `${asked} of ${waiting.map((one) => one.asked)}`);
    waiting.splice(at, 1)[0].give();
    await idle();
  };
  const press = () => /** @type {any} */ (editor.choices.excluding).heard.click();
  return { editor, answer, press, waiting, written };
}

test("a clip that is opened again is read when its change is saved, which the next change knows", async () => {
  const { editor, answer, press, waiting, written } = await opened();
  editor.open(0, "clip 0");
  await answer("read 0");
  press();
  editor.open(1, "clip 1");
  press(); // its button acts on no clip yet
  editor.open(0, "clip 0");
  await idle();
  assert.deepEqual(
    waiting.map((one) => one.asked),
    ["save 0"],
    "no clip is read that is not open, and none before its change is saved",
  );
  await answer("save 0");
  await answer("read 0");
  assert.equal(editor.choices.excluding.textContent, "Include");
  press();
  await idle();
  assert.deepEqual(written, [
    [0, {}, { excluded: true }],
    [0, { excluded: true }, {}],
  ]);
});

test("an answer to an earlier read of the same clip shows nothing", async () => {
  const { editor, answer, press, written } = await opened();
  editor.open(0, "clip 0");
  await idle();
  editor.close();
  editor.open(0, "clip 0");
  await idle();
  await answer("read 0"); // the earlier one
  assert.equal(editor.choices.excluding.hidden, true);
  await answer("read 0");
  press();
  editor.close();
  await answer("save 0");
  assert.deepEqual(written, [[0, {}, { excluded: true }]]);
});

test("a crop that is dragged when another clip is opened moves nothing of that one", async () => {
  const { editor, answer, written } = await opened();
  /** @type {any} */
  const { choices } = editor;
  const show = async (/** @type {number} */ clip) => {
    editor.open(clip, `clip ${clip}`);
    await answer(`read ${clip}`);
    choices.media = { naturalWidth: 200, naturalHeight: 100 };
    choices.draw();
    assert.equal(choices.crop.hidden, false);
  };
  const mouse = {
    pointerId: 1,
    clientX: 50,
    clientY: 0,
    preventDefault() {},
    stopPropagation() {},
  };
  await show(0);
  choices.crop.parentElement = choices.crop;
  choices.crop.heard.pointerdown(mouse);
  choices.crop.onpointermove({ ...mouse, clientX: 60 });
  await show(1);
  choices.crop.onpointermove?.({ ...mouse, clientX: 90 }); // over it, no button pressed
  editor.close();
  await answer("save 0");
  assert.deepEqual(
    written.map(([clip]) => clip),
    [0],
  );
});
