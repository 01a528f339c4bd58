import assert from "node:assert/strict";
import { test } from "node:test";

import {
  doneText,
  foundText,
  isScan,
  lessText,
  Memory,
  replaceText,
} from "../../../web/js/lib/cards/caption_edits.mjs";
import { pictures } from "../../../web/js/lib/cards/dataset.mjs";
import { captionsPath, clipPath } from "../../../web/js/lib/page/routes.mjs";

const found = { total: 9, count: 4, can_change: 3, places: 5, captions: [{}, {}, {}, {}] };

test("what would be replaced is counted before, and what cannot be is named", () => {
  assert.equal(foundText(found), "4 of 9 captions");
  assert.equal(foundText({ ...found, count: 8 }), "8 of 9 captions, the first 4 are shown");
  assert.equal(replaceText(found), "Replace 5 in 3 captions");
  assert.equal(lessText(found), "1 cannot be changed here");
  assert.equal(lessText({ ...found, can_change: 4 }), "");
});

test("what was done is said with what was not", () => {
  const done = { change: 1, clips: 2, kept: 1, refused: ["a.txt is a link. Edit it there."] };
  assert.equal(
    doneText(done, false),
    "2 captions changed. Run again to train with them. a.txt is a link. Edit it there.",
  );
  assert.match(doneText({ ...done, refused: [] }, true), /^Restored: 2 caption files[.]$/);
  assert.equal(doneText(done, true, true), "Restored: the previous choice.");
  const one = { ...done, clips: 1, refused: [] };
  assert.equal(doneText(one, true), "Restored: 1 caption file.");
  assert.equal(doneText(one, false), "1 caption changed. Run again to train with it.");
  assert.equal(replaceText({ ...found, can_change: 1 }), "Replace 5 in 1 caption");
});

test("changes are undone newest first, each on the scan it was made on", () => {
  const memory = new Memory();
  assert.equal(memory.canUndo, false);
  memory.keep("a", { change: 1, clips: 1, kept: 0, refused: [] });
  memory.keep("b", { change: 0, clips: 0, kept: 0, refused: [] });
  memory.keep("b", { change: 1, clips: 1, kept: 0, refused: [] });
  memory.keep("a", { change: 2 }, true);
  assert.deepEqual(memory.take(), { scan: "a", change: 2, choice: true });
  assert.deepEqual(memory.take(), { scan: "b", change: 1, choice: false });
  assert.deepEqual(memory.take(), { scan: "a", change: 1, choice: false });
  assert.equal(memory.take(), undefined);
});

test("only an id of a scan is one, and it stays one part of an address", () => {
  assert.ok(isScan("5ca9".repeat(8)));
  for (const bad of [undefined, 7, "", "x", "../runs", "5CA9".repeat(8), "5ca9".repeat(9), "<b>"]) {
    assert.ok(!isScan(bad), String(bad));
  }
  assert.equal(
    captionsPath("../a", { text: "a&b=c/#" }),
    "/wan_trainer/scans/..%2Fa/captions?text=a%26b%3Dc%2F%23",
  );
  assert.equal(captionsPath("a", { clip: 3 }), "/wan_trainer/scans/a/captions?clip=3");
  assert.equal(clipPath("a/b", 3), "/wan_trainer/scans/a%2Fb/clips/3");
});

test("a picture knows its clip and whether nothing is written about it", () => {
  const cell = { name: "a", kind: "clip", frames: 1, width: 2, height: 3 };
  const layout = { columns: 2, rows: 1, cell_width: 9, cell_height: 9, name_height: 9 };
  const cells = [
    { ...cell, clip: 4, caption: "" },
    { ...cell, clip: "5", caption: "b" },
  ];
  const shown = pictures({ sheet: { ...layout, cells } }).map(({ clip, empty }) => [clip, empty]);
  assert.deepEqual(shown, [
    [4, true],
    [null, false],
  ]);
});

test("a change of the node itself can be undone once, however many times it is shown", () => {
  const memory = new Memory();
  const undo = { scan: "0".repeat(32), change: 4 };
  for (const one of [undo, undo, undefined, { scan: "x", change: 1 }]) memory.offer(one);
  assert.deepEqual(memory.take(), { ...undo, choice: false });
  assert.equal(memory.canUndo, false);
});
