// @ts-check
/** First frames of clips, read a few at a time: a page with hundreds of clips never loads more than that at once. */

/** How many clips are read at once. */
export const AT_ONCE = 4;
/** Milliseconds until a clip that does not load makes way for the next. */
const PATIENCE = 20_000;
/** A little into the clip: the first frame of a fade is black. */
const STILL = "#t=0.1";

/** @typedef {{ taken: (video: HTMLVideoElement) => void, failed: () => void }} Wanted */

export class Posters {
  /** Addresses that wait, oldest first. @type {Map<string, Wanted>} */
  #waiting = new Map();
  #reading = 0;

  /** @param {() => HTMLVideoElement} make an element that is not on the page */
  constructor(make) {
    this.make = make;
  }

  /** @param {string} source address of a clip @param {Wanted} wanted called once, with the element while it has the frame */
  want(source, wanted) {
    this.#waiting.set(source, wanted);
    this.#next();
  }

  /** The clip is out of view. @param {string} source */
  forget(source) {
    this.#waiting.delete(source);
  }

  clear() {
    this.#waiting.clear();
  }

  #next() {
    for (const [source, wanted] of this.#waiting) {
      if (this.#reading >= AT_ONCE) return;
      this.#waiting.delete(source);
      this.#read(source, wanted);
    }
  }

  /** @param {string} source @param {Wanted} wanted */
  #read(source, { taken, failed }) {
    this.#reading += 1;
    const video = this.make();
    const end = (/** @type {() => void} */ then) => () => {
      clearTimeout(timer);
      video.onloadeddata = null;
      video.onerror = null;
      then();
      release(video);
      this.#reading -= 1;
      this.#next();
    };
    const timer = setTimeout(end(failed), PATIENCE);
    video.onloadeddata = end(() => taken(video));
    video.onerror = end(failed);
    video.src = source + STILL;
  }
}

/** A browser keeps few clips open, and ends the download of one that has no source. @param {HTMLVideoElement} video */
export function release(video) {
  video.pause();
  video.removeAttribute("src");
  video.load();
}
