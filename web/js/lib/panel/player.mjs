// @ts-check
/** Previews of a run: the clip of a saved step next to the one of step 0, playing in sync. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { caption, channels, lastWithClip, position, stops } from "../run/clips.mjs";
import { warningText } from "../run/looks.mjs";
import { judgedText } from "../run/names.mjs";

/**
 * @typedef {import("../page/routes.mjs").Sample} Sample
 * @typedef {import("../run/clips.mjs").Stop} Stop
 * @typedef {import("../run/clips.mjs").Channel} Channel
 */

export class Player {
  /**
   * @param {(sample: Sample) => string} address of a clip
   * @param {(step: number) => void} use called with the saved step that the user chose as the run's LoRA
   * @param {() => void} all opens the previews of all prompts and steps
   */
  constructor(address, use = () => {}, all = () => {}) {
    this.address = address;
    /** The suggested step. @type {number | null} */
    this.best = null;
    /** Problems of saved steps' LoRAs. @type {Map<number, import("../run/looks.mjs").Look>} */
    this.looks = new Map();
    /** Names of the evaluated experts; empty for a single model. */
    this.judged = "";
    /** Whether the user can choose a saved step now. */
    this.canUse = false;
    /** The step that is the run's LoRA. @type {number | null} */
    this.inUse = null;
    /** @type {Stop[]} */
    this.stops = [];
    /** The channels: prompts, and renderings of Validate Video. @type {Channel[]} */
    this.channels = [];
    /** @type {Channel | null} */
    this.channel = null;
    /** The position of the models without LoRA. @type {Stop | null} */
    this.base = null;
    /** Whether to show the newest preview; false after the user has chosen an older one. */
    this.following = true;
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
      oninput: () => this.slide(),
    });
    this.choice = element("select", {
      "aria-label": t("Which clips to play"),
      onchange: () => this.choose(),
    });
    this.play = button("", t("Play or pause both previews"), () => this.switchPlay());
    this.star = button("★", t("Show the suggested step"), () => this.showBest());
    mark(this.star, "aria-label", t("Show the suggested step"));
    this.use = button(
      t("Use this step"),
      t("Publish this saved step as the run's LoRA, under the run's name."),
      () => this.chosen && use(this.chosen.step),
    );
    this.used = element("span", {}, t("in use"));
    this.row = element(
      "div",
      { class: "wan-player-row" },
      this.play,
      this.slider,
      this.star,
      this.choice,
      this.use,
      this.used,
    );
    const clips = element("div", { class: "wan-clips" }, this.before.figure, this.after.figure);
    this.words = element("p", { class: "wan-prompt", hidden: true });
    this.all = button(t("All previews"), t("Prompts by saved steps, on one page"), all);
    /** Problem of the step's LoRA. */
    this.warning = element("p", { class: "wan-warning", hidden: true });
    this.element = element(
      "div",
      { class: "wan-player", hidden: true },
      clips,
      element("div", { class: "wan-prompt-row" }, this.words, this.all),
      this.row,
      this.warning,
    );
    // Both restart together; clips of equal length then stay synchronous.
    this.after.video.addEventListener("loadeddata", () => {
      this.before.video.currentTime = 0;
      this.after.video.currentTime = 0;
    });
  }

  /** @param {import("../page/routes.mjs").Detail} detail @param {import("../run/history.mjs").RunHistory} history of a run */
  take(detail, { looks, judged }) {
    Object.assign(this, { looks, judged: judgedText(judged) });
    this.update(detail.samples ?? [], detail.saves ?? []);
  }

  /**
   * @param {Sample[]} samples
   * @param {{ step: number, eval_loss?: number | null }[]} saves
   */
  update(samples, saves) {
    const chosen = this.stops[Number(this.slider.value)]?.step;
    const all = stops(samples, saves);
    this.base = all.find((stop) => stop.step === 0) ?? null;
    this.stops = all.filter((stop) => stop.step > 0 || all.length === 1);
    this.element.hidden = !samples.length;
    this.all.hidden = samples.length < 2;
    if (!samples.length) this.following = true;
    this.slider.max = String(Math.max(0, this.stops.length - 1));
    this.offer(channels(samples));
    const at = position(this.stops, this.channel?.key ?? "", this.following ? undefined : chosen);
    this.slider.value = String(at);
    if (samples.length) this.show();
    else for (const place of [this.before, this.after]) this.fillClip(place, null, "");
  }

  /** The position of the slider. @returns {Stop | null} */
  get chosen() {
    return this.stops[Number(this.slider.value)] ?? null;
  }

  /** @param {number | null} best @param {boolean} canUse @param {number | null} inUse the step that is the run's LoRA */
  suggest(best, canUse, inUse) {
    if (best === this.best && canUse === this.canUse && inUse === this.inUse) return;
    Object.assign(this, { best, canUse, inUse });
    this.show();
  }

  showBest() {
    const at = this.stops.findIndex((stop) => stop.step === this.best);
    if (at < 0) return;
    this.slider.value = String(at);
    this.slide();
  }

  slide() {
    const newest = lastWithClip(this.stops, this.channel?.key ?? "");
    this.following = Number(this.slider.value) >= newest;
    this.show();
  }

  /** @param {Channel[]} offered */
  offer(offered) {
    const named = (/** @type {Channel[]} */ all) => all.map(({ key, title }) => key + title).join();
    if (named(offered) !== named(this.channels)) {
      fill(
        this.choice,
        ...offered.map(({ key, title }) => element("option", { value: key }, title)),
      );
    }
    this.channels = offered;
    this.choice.hidden = offered.length < 2;
    this.channel = offered.find(({ key }) => key === this.channel?.key) ?? offered[0] ?? null;
    this.choice.value = this.channel?.key ?? "";
  }

  choose() {
    this.channel = this.channels.find(({ key }) => key === this.choice.value) ?? null;
    const stop = this.stops[Number(this.slider.value)];
    if (this.channel && !stop?.clips.has(this.channel.key)) {
      this.slider.value = String(lastWithClip(this.stops, this.channel.key));
    }
    this.show();
  }

  switchPlay() {
    this.playing = !this.playing;
    this.show();
  }

  show() {
    const stop = this.chosen;
    this.star.hidden = !this.stops.some((one) => one.step === this.best);
    const isUsed = stop !== null && stop.step === this.inUse;
    this.use.hidden = !this.canUse || !stop?.saved || isUsed;
    this.used.hidden = !isUsed;
    const { key, base } = this.channel ?? { key: "", base: "" };
    mark(
      this.slider,
      "aria-valuetext",
      stop ? caption(stop, key, this.best, this.judged) : t("none"),
    );
    write(this.play, this.playing ? "❚❚" : "▶");
    mark(this.play, "aria-label", this.playing ? t("Pause previews") : t("Play previews"));
    this.before.figure.hidden = !this.base?.clips.has(base) || this.base === stop;
    if (!this.before.figure.hidden) this.fillClip(this.before, this.base, base);
    this.fillClip(this.after, stop, key);
    const shown = stop?.clips.get(key);
    const look = stop?.saved ? this.looks.get(stop.step) : undefined;
    const warning = look ? warningText(look) : "";
    write(this.warning, warning && `⚠ ${warning}`);
    this.warning.hidden = !warning;
    const prompt = String(shown?.text ?? "");
    this.words.hidden = !prompt;
    write(this.words, prompt);
    mark(this.words, "title", prompt);
  }

  /** @param {ReturnType<typeof clip>} place @param {Stop | null} stop @param {string} key of a channel */
  fillClip(place, stop, key) {
    const sample = stop?.clips.get(key);
    write(place.caption, stop ? caption(stop, key, this.best, this.judged) : "");
    place.video.hidden = !sample;
    place.none.hidden = Boolean(sample);
    const wanted = sample ? this.address(sample) : "";
    if (place.shown !== wanted) {
      place.shown = wanted;
      if (wanted) place.video.src = wanted;
      else {
        place.video.removeAttribute("src");
        place.video.load(); // cancels the download
      }
    }
    if (!wanted || !this.playing) place.video.pause();
    // Browsers may refuse to play before the user has interacted with the page; the button then starts the clip.
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
  return { video, none, caption: text, figure, shown: "" };
}
