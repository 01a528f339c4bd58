import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { afterEach, test } from "node:test";

import { learn } from "../../../web/js/lib/page/words.mjs";
import { filled, formOf, readForm } from "../../../web/js/lib/run/forms.mjs";
import { learnRefusals, loadRefusals, refusal } from "../../../web/js/lib/run/refusals.mjs";
import { told } from "../../../web/js/lib/run/server_sentences.mjs";

const ROOT = new URL("../../../", import.meta.url);
const read = (language) =>
  JSON.parse(readFileSync(new URL(`web/js/sentences/${language}.json`, ROOT), "utf8"));
const SENTENCES = Object.keys(read("zh"));

afterEach(() => {
  learnRefusals({});
  learn({});
});

test("a text gives back what was put into a sentence", () => {
  const form = formOf("{name} is {value}. Use {low} to {high}.");
  const values = { name: "rank", value: "a. Use b", low: "1", high: "8" };
  assert.deepEqual(readForm(form, "rank is 2000. Use 1 to 8."), {
    ...values,
    value: "2000",
  });
  assert.equal(readForm(form, "rank is 2000. Use 1 to 8"), null);
  assert.equal(readForm(form, "rank is . Use 1 to 8."), null);
  assert.equal(readForm(form, "rank is . Use 1 to 8.", 0).value, "");
  assert.equal(readForm(formOf("a {b} a"), "a a", 0), null, "its two ends do not overlap");
  assert.deepEqual(readForm(formOf("No hole."), "No hole."), {});
  assert.equal(filled("{b} {a} {c}", { a: "{b}", b: "1" }), "1 {b} {c}");
});

test("every refusal that is said with its holes filled is known as itself", () => {
  learnRefusals(Object.fromEntries(SENTENCES.map((one) => [one, `¡${one}!`])));
  for (const sentence of SENTENCES) {
    const holes = sentence.match(/\{\w+\}/g) ?? [];
    const text = holes.reduce((said, hole, i) => said.replace(hole, `v${i}`), sentence);
    assert.equal(told(text), `¡${text}!`);
  }
});

test("an English page changes nothing", () => {
  for (const sentence of SENTENCES) assert.equal(told(sentence), sentence);
});

test("what stands in a hole, and sentences behind each other, are told in turn", () => {
  learnRefusals({
    "{name} {value} is out of range. Use {low} to {high}.":
      "{name} {value} 超出范围。请使用 {low} 到 {high}。",
    '{name} "{value}" is unknown.{nearest}': '未知的 {name} "{value}"。{nearest}',
    'Did you mean "{close}"?': '您是想写 "{close}" 吗？',
    "No good step was saved.": "没有保存到良好的步骤。",
    "Lower learning_rate, or {fix}": "请调低 learning_rate，或{fix}",
    "set base_precision to bf16.": "把 base_precision 设为 bf16。",
  });
  assert.equal(
    refusal('optimizer "adma" is unknown. Did you mean "adamw"?'),
    '未知的 optimizer "adma"。 您是想写 "adamw" 吗？',
  );
  assert.equal(
    refusal(
      "3 steps were bad. No good step was saved. Lower learning_rate, or set base_precision to bf16.",
    ),
    "3 steps were bad. 没有保存到良好的步骤。请调低 learning_rate，或把 base_precision 设为 bf16。",
  );
  assert.equal(
    refusal("run_1/run.json: steps 0 is out of range. Use 1 to 5."),
    "run_1/run.json: steps 0 超出范围。请使用 1 到 5。",
  );
});

test("of two sentences that a text may be, the one with more words counts", () => {
  learnRefusals({ "{a} is {b}.": "?", "{a} is empty. Write it again.": "{a}!" });
  assert.equal(refusal("x.tar is empty. Write it again."), "x.tar!");
});

test("a sentence that ends with a hole does not swallow the sentences behind it", () => {
  learnRefusals(read("zh"));
  assert.equal(
    refusal(
      "20 steps in a row gave no usable loss (NaN or infinity), the last one step 40. Saved step 20 is the last good one.",
    ),
    "连续 20 步的 loss 不是可用的数值（NaN 或无穷大），最后一步是第 40 步。保存步 20 是最后一个良好的。",
  );
});

test("what a hole lists is told one by one", () => {
  learnRefusals(read("zh"));
  learn(JSON.parse(readFileSync(new URL("locales/zh/main.json", ROOT), "utf8")).wanTrainer);
  assert.equal(
    told(
      "The GPU ran out of memory: it asked for 512.00 MiB more, 204.50 MiB of 15.70 GiB were free. What helps most, in this order: gradient_checkpointing in Wan Train Settings; a rank below 32 (begins a new run). Saved steps are kept.",
    ),
    "GPU 显存不足: 还请求了 512.00 MiB, 15.70 GiB 中有 204.50 MiB 空闲。最有效的办法依次为：打开“Wan 训练设置”中的 gradient_checkpointing; 使用小于 32 的 rank（会开始新的训练）。已保存的步骤都会保留。",
  );
});

test("two holes side by side part where the words of the second begin", () => {
  learnRefusals({
    "No caption: {names}{more}. Write them.": "{more}（{names}）",
    "and {n} more": "+{n}",
  });
  assert.equal(refusal("No caption: a, b and 3 more. Write them."), " +3（a, b）");
  assert.equal(refusal("No caption: a and b. Write them."), "（a and b）");
});

test("a name with blanks or dots in it does not part a sentence in the wrong place", () => {
  learnRefusals(read("zh"));
  const said = {
    "Record 12 of my clips v2.tfrecord is damaged at byte 512. Copy or write the file again.":
      "my clips v2.tfrecord 的第 12 条记录在第 512 字节处损坏。请重新复制或写出该文件。",
    'Unknown setting "rnk" in train.lora. Did you mean "rank"?':
      'train.lora 中有未知设置 "rnk"。 您是想写 "rank" 吗？',
    'Unknown setting "rnk" in train.lora.': 'train.lora 中有未知设置 "rnk"。',
    "There are fewer captions than stills: 3 for 4. Give exactly one caption for each still.":
      "标注少于 still：3 对 4。请为每个 still 恰好提供一条标注.",
    "Dataset folder my old clips does not exist. Choose a folder that holds clips.":
      "数据集文件夹 my old clips 不存在。请选择含有片段的文件夹。",
    "clips.jsonl line 3: my clip v2.mp4 does not exist. Put it beside clips.jsonl, or correct the path.":
      "clips.jsonl line 3：my clip v2.mp4 不存在。请把它放在 clips.jsonl 旁边，或修正路径。",
    "Dataset folder my old clips melted. Choose a folder that holds clips.":
      "数据集文件夹 my old clips melted。请选择含有片段的文件夹。",
  };
  for (const [text, translated] of Object.entries(said)) assert.equal(refusal(text), translated);
});

test("what nobody translated is shown as it came, however long, nested or hostile", () => {
  learnRefusals(read("zh"));
  for (const text of ["", " ", "The GPU melted.", "{name}", "<b>$& $1</b>", "constructor"]) {
    assert.equal(told(text), text);
  }
  const parts = ["a. ", "is ", ": ", '"', "A: b. ", "Use 1 to ", " must be , not ", "() "];
  const start = performance.now();
  for (const part of parts) {
    for (const length of [200, 1999, 2000, 100_000]) {
      const text = part.repeat(length).slice(0, length);
      assert.equal(typeof told(text), "string");
    }
  }
  const taken = performance.now() - start;
  assert.ok(taken < 3000, `${taken} ms`);
});

test("what is put in stays to the letter and never becomes a hole or a pattern", () => {
  learnRefusals(read("zh"));
  const strange = 'a{low} $& <img src=x> \\ "q"';
  assert.equal(
    told(`File ${strange} does not exist. Choose one that does.`),
    `文件 ${strange} 不存在。请选择存在的文件。`,
  );
});

test("the sentences of the page's language are asked for once, those of English never", async () => {
  const asked = [];
  const serve = async (address) => {
    asked.push(address.pathname.split("/").at(-1));
    return new Response(JSON.stringify({ "No good step was saved.": "良", bad: 3 }));
  };
  for (const locale of ["en", "fr", "zh-TW"]) await loadRefusals(serve, locale);
  assert.deepEqual(asked, []);
  await loadRefusals(serve, "zh-CN");
  assert.deepEqual(asked, ["zh.json"]);
  assert.equal(told("No good step was saved."), "良");
});

test("a page that gets no answer shows refusals as they come", async (context) => {
  context.mock.method(console, "warn", () => {});
  await loadRefusals(async () => new Response("gone", { status: 404 }), "ja");
  await loadRefusals(async () => new Response("no JSON"), "ja");
  assert.equal(told("No good step was saved."), "No good step was saved.");
  assert.equal(console.warn.mock.callCount(), 1);
});
