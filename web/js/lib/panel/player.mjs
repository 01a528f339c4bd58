// @ts-check
/** Previews of a run: the clip of a saved step beside the one from before the first step, playing together. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";

/**
 * @typedef {import("../page/routes.mjs").Sample} Sample
 * @typedef {{ step: number, saved: boolean, evalLoss: number | null, clips: Sample[] }} Stop a position of the slider
 */

/**
 * Positions of the slider: every step that was saved or previewed, with its clips in order of their prompts.
 * @param {Sample[]} samples
 * @param {{ step: number, eval_loss?: number | null }[]} saves
 * @returns {Stop[]}
 */
export function stops(samples, saves) {
  /** @type {Map<number, Stop>} */
  const found = new Map();
  const at = (/** @type {number} */ step) => {
    const stop = found.get(step) ?? { step, saved: false, evalLoss: null, clips: [] };
    found.set(step, stop);
    return stop;
  };
  for (const { step, eval_loss } of saves)
    Object.assign(at(step), { saved: true, evalLoss: eval_loss ?? null });
  for (const sample of samples) at(sample.step).clips.push(sample);
  return [...found.values()].sort((a, b) => a.step - b.step);
}

/**
 * What stands under a clip.
 * @param {Stop} stop
 */
export function caption(stop) {
  if (stop.step === 0) return t("before training");
  const words = [t("step {step}", { step: stop.step })];
  if (stop.evalLoss !== null) words.push(t("eval {loss}", { loss: short(stop.evalLoss) }));
  if (!stop.saved) words.push(t("not saved"));
  if (!stop.clips.length) words.push(t("no preview"));
  return words.join(" · ");
}

export class Player {
  /** @param {(sample: Sample) => string} address of a clip */
  constructor(address) {
    this.address = address;
    /** @type {Stop[]} */
    this.stops = [];
    this.prompt = 0;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.before = clip(t("Preview before training"));
    this.after = clip(t("Preview of the chosen step"));
    this.slider = element("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      "aria-label": t("Saved step to preview"),
      oninput: () => this.show(),
    });
    this.prompts = element("select", {
      "aria-label": t("Prompt of the preview"),
      onchange: () => this.choosePrompt(),
    });
    this.play = button("", t("Play or pause both previews"), () => this.switchPlay());
    this.row = element("div", { class: "wan-player-row" }, this.play, this.slider, this.prompts);
    const clips = element("div", { class: "wan-clips" }, this.before.figure, this.after.figure);
    this.element = element("div", { class: "wan-player", hidden: true }, clips, this.row);
    // Together from the first frame: two clips of one length stay side by side by themselves.
    this.after.video.addEventListener("loadeddata", () => {
      this.before.video.currentTime = 0;
      this.after.video.currentTime = 0;
    });
  }

  /**
   * @param {Sample[]} samples
   * @param {{ step: number, eval_loss?: number | null }[]} saves
   */
  update(samples, saves) {
    const newest = this.slider.value === this.slider.max;
    const chosen = this.stops[Number(this.slider.value)]?.step;
    const all = stops(samples, saves);
    this.before.stop = all.find((stop) => stop.step === 0) ?? null;
    this.stops = all.filter((stop) => stop.step > 0 || all.length === 1);
    this.element.hidden = !samples.length;
    this.slider.max = String(Math.max(0, this.stops.length - 1));
    const kept = this.stops.findIndex((stop) => stop.step === chosen);
    this.slider.value = newest || kept < 0 ? String(this.newest()) : String(kept);
    this.offerPrompts(Math.max(0, ...all.map((stop) => stop.clips.length)));
    if (samples.length) this.show();
  }

  /** The last position that has a clip. */
  newest() {
    const with_clip = this.stops.findLastIndex((stop) => stop.clips.length);
    return with_clip < 0 ? this.stops.length - 1 : with_clip;
  }

  /** @param {number} count */
  offerPrompts(count) {
    this.prompts.hidden = count < 2;
    if (this.prompts.options.length === count) return;
    fill(
      this.prompts,
      ...Array.from({ length: count }, (_, i) =>
        element("option", { value: i }, t("prompt {n}", { n: i + 1 })),
      ),
    );
    this.prompt = Math.min(this.prompt, Math.max(0, count - 1));
    this.prompts.value = String(this.prompt);
  }

  choosePrompt() {
    this.prompt = Number(this.prompts.value);
    this.show();
  }

  switchPlay() {
    this.playing = !this.playing;
    this.show();
  }

  show() {
    const stop = this.stops[Number(this.slider.value)] ?? null;
    mark(this.slider, "aria-valuetext", stop ? caption(stop) : t("none"));
    write(this.play, this.playing ? "❚❚" : "▶");
    mark(this.play, "aria-label", this.playing ? t("Pause previews") : t("Play previews"));
    this.before.figure.hidden = !this.before.stop || this.before.stop === stop;
    if (!this.before.figure.hidden) this.fillClip(this.before, this.before.stop);
    this.fillClip(this.after, stop);
  }

  /** @param {ReturnType<typeof clip>} place @param {Stop | null} stop */
  fillClip(place, stop) {
    const sample = stop?.clips[Math.min(this.prompt, (stop?.clips.length ?? 1) - 1)];
    write(place.caption, stop ? caption(stop) : "");
    place.video.hidden = !sample;
    place.none.hidden = Boolean(sample);
    const wanted = sample ? this.address(sample) : "";
    if (place.shown !== wanted) {
      place.shown = wanted;
      if (wanted) place.video.src = wanted;
      else place.video.removeAttribute("src");
    }
    if (!wanted || !this.playing) place.video.pause();
    // A page nobody has touched yet may refuse to play; the button then does it.
    else place.video.play().catch(() => {});
  }
}

/** @param {string} label */
function clip(label) {
  const video = element("video", {
    loop: true,
    playsinline: true,
    preload: "auto",
    "aria-label": label,
  });
  video.muted = true;
  const none = element("div", { class: "wan-no-clip", hidden: true }, t("no preview at this step"));
  const text = element("figcaption", {});
  const figure = element("figure", {}, video, none, text);
  /** @type {Stop | null} */
  const stop = null;
  return { video, none, caption: text, figure, stop: /** @type {Stop | null} */ (stop), shown: "" };
}
