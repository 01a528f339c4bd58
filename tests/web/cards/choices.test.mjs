import assert from "node:assert/strict";
import { test } from "node:test";

import {
  cropOf,
  isCut,
  movedPiece,
  pieceOf,
  pieceText,
  withCrop,
  withExcluded,
  withPiece,
} from "../../../web/js/lib/cards/choices.mjs";

test("a clip without a choice is complete, and stays so when its ends are put back", () => {
  assert.deepEqual(pieceOf(undefined, 8), { start: 0, end: 8 });
  assert.deepEqual(withPiece({ crop: [0, 0.5] }, { start: 0, end: 8 }, 8), { crop: [0, 0.5] });
  const cut = withPiece({}, { start: 1.2345, end: 5 }, 8);
  assert.deepEqual(cut, { start_s: 1.23, length_s: 3.77 });
  assert.deepEqual(pieceOf(cut, 8), { start: 1.23, end: 5 });
  assert.deepEqual(withPiece(cut, { start: 2, end: 8 }, 8), { start_s: 2 });
  assert.equal(pieceText({ start: 1.5, end: 4 }, 8), "1.50 to 4.00 of 8.00 s");
});

test("a piece stays as long as what is trained, and inside its clip", () => {
  const piece = { start: 1, end: 4 };
  assert.deepEqual(movedPiece(piece, "start", 3.9, 2, 8), { start: 2, end: 4 });
  assert.deepEqual(movedPiece(piece, "start", -3, 2, 8), { start: 0, end: 4 });
  assert.deepEqual(movedPiece(piece, "end", 1, 2, 8), { start: 1, end: 3 });
  assert.deepEqual(movedPiece(piece, "end", 99, 2, 8), { start: 1, end: 8 });
  assert.deepEqual(movedPiece({ start: 0, end: 1 }, "start", 1, 2, 1), { start: 0, end: 1 });
  // A piece that the file says, shorter than what is trained, grows to it.
  assert.deepEqual(movedPiece({ start: 3, end: 3.5 }, "end", 4, 2, 8), { start: 3, end: 5 });
});

test("a piece past the end of its clip is shown at the end", () => {
  assert.deepEqual(pieceOf({ start_s: 99, length_s: 3 }, 8), { start: 8, end: 8 });
});

test("a crop moves along the one axis that has room", () => {
  const bucket = { num_frames: 9, width: 480, height: 480 };
  assert.deepEqual(cropOf(960, 480, bucket, {}), { axis: 0, size: 0.5, at: 0.5 });
  assert.deepEqual(cropOf(480, 960, bucket, { crop: [0.5, 1] }), { axis: 1, size: 0.5, at: 1 });
  assert.equal(cropOf(480, 482, bucket, {}), null, "two pixels are no crop to choose");
  for (const odd of [undefined, { width: 0, height: 3 }, { width: "9", height: 1 }]) {
    assert.equal(cropOf(480, 960, odd, {}), null);
  }
  assert.equal(cropOf(undefined, 960, bucket, {}), null);
  assert.deepEqual(withCrop({ excluded: true }, 0, 1.7), { excluded: true, crop: [1, 0.5] });
  assert.deepEqual(withCrop({ crop: [1, 0.5] }, 0, 0.501), {}, "the centre is no choice");
  assert.deepEqual(withCrop({}, 1, 0.25), { crop: [0.5, 0.25] });
});

test("excluding a clip keeps its piece", () => {
  assert.deepEqual(withExcluded({ start_s: 1 }, true), { start_s: 1, excluded: true });
  assert.deepEqual(withExcluded({ start_s: 1, excluded: true }, false), { start_s: 1 });
  assert.ok(isCut({ start_s: 1 }));
  assert.ok(!isCut({ excluded: true }));
});
