import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const WEB = new URL("../../web/js/", import.meta.url);
const files = readdirSync(WEB, { recursive: true }).filter((name) => /\.(m?js|css)$/.test(name));

// What turns a text into markup, style or code.
const FORBIDDEN =
  /innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\(|new Function|setHTML|v-html/;

test("no text can become markup or code", () => {
  assert.ok(files.length > 10, String(files));
  for (const name of files) {
    assert.doesNotMatch(readFileSync(new URL(name, WEB), "utf8"), FORBIDDEN, name);
  }
});

test("nothing is loaded from another server", () => {
  for (const name of files) {
    assert.doesNotMatch(readFileSync(new URL(name, WEB), "utf8"), /https?:\/\/|@import/, name);
  }
});

test("only one file is loaded by ComfyUI by itself", () => {
  assert.deepEqual(
    files.filter((name) => name.endsWith(".js")),
    ["wan_trainer.js"],
  );
});
