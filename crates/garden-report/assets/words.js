/* What a chart writes: amounts in their unit, places on its axis, and round numbers for both axes. `chart.js` draws. */
"use strict";
const chartWords = (() => {
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  const BINARY = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
  const DECIMAL = [["G", 1e9], ["M", 1e6], ["", 1]];
  const grouped = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

  const bytesWords = (bytes) => {
    const size = Math.abs(bytes);
    const [unit, factor] = BINARY.find(([, factor]) => size >= 0.9995 * factor) || BINARY[4];
    const value = size / factor;
    const digits = factor === 1 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${unit}`;
  };

  const plainWords = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3);
    return String(Number(value.toPrecision(5)));
  };

  const amountWords = (value, unit) => {
    switch (unit) {
      case "bytes": return bytesWords(value);
      case "count": return grouped(value);
      case "percent": return `${Number((100 * value).toFixed(2))} %`;
      case "seconds": return `${plainWords(value)} s`;
      default: return plainWords(value);
    }
  };

  /** What a rounded amount leaves out. */
  const exactWords = (value, unit) => (unit === "bytes" && Math.abs(value) >= 1024 ? `${grouped(value)} B` : "");

  const timeUnit = (longest) => (longest >= 7200 ? "h" : longest >= 120 ? "min" : "s");
  const placeWords = (place, axis, precise) => {
    if (axis.kind !== "time") return String(Number(place.toFixed(2)));
    const unit = timeUnit(axis.to - Math.min(0, axis.from));
    if (unit === "s") return `${Number(place.toFixed(precise ? 2 : 1))}`;
    const sixtieths = Math.round(unit === "h" && !precise ? place / 60 : place);
    const size = Math.abs(sixtieths);
    const two = (number) => String(number).padStart(2, "0");
    const sign = sixtieths < 0 ? "-" : "";
    if (unit === "h" && precise) {
      return `${sign}${Math.floor(size / 3600)}:${two(Math.floor(size / 60) % 60)}:${two(size % 60)}`;
    }
    return `${sign}${Math.floor(size / 60)}:${two(size % 60)}`;
  };
  const placeName = (place, axis) =>
    axis.kind === "time"
      ? `${placeWords(place, axis, true)} ${timeUnit(axis.to - Math.min(0, axis.from))}`
      : `${axis.name} ${placeWords(place, axis, true)}`;

  /* ---- Scales ---- */

  const roundStep = (least, steps) => {
    const power = 10 ** Math.floor(Math.log10(least));
    return (steps.find((step) => step * power >= least * 0.9999) || 10) * power;
  };
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

  const valueTicks = (low, high, unit, most) => {
    const units = unit === "bytes" ? BINARY : unit === "count" ? DECIMAL : [["", 1]];
    const [name, factor] = units.find(([, factor]) => high >= factor) || units[units.length - 1];
    const least = (high - low) / factor / most;
    if (!(least > 0)) return [];
    let step = roundStep(least, unit === "bytes" ? [1, 2, 4, 5, 10] : unit === "percent" ? [1, 2, 2.5, 5, 10] : [1, 2, 5, 10]);
    if (unit === "count" && factor === 1) step = Math.max(1, step);
    const shown = unit === "percent" ? step * 100 : step;
    const digits = clamp(Math.ceil(-Math.log10(shown) + (Math.abs(shown * 10 ** 9 % 1) > 1e-6 ? 1 : -1e-9)), 0, 9);
    const ticks = [];
    for (let n = Math.ceil(low / factor / step - 1e-9); n * step <= high / factor + 1e-9 * step; n += 1) {
      const number = n * step;
      const text = unit === "percent" ? `${(100 * number).toFixed(digits)} %`
        : n === 0 ? "0"
        : step < 1e-4 || step >= 1e7 ? number.toExponential(1)
        : number.toFixed(digits);
      const suffix = unit === "seconds" ? "s" : unit === "count" && n === 0 ? "" : name;
      ticks.push([number * factor, [text, suffix].filter(Boolean).join(" ")]);
    }
    return ticks;
  };

  /** Round values for an axis of ratios: powers of ten, and what lies between them where there is room. */
  const ratioTicks = (low, high, unit, most) => {
    const within = (steps) => {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        for (const step of steps) {
          const value = Number(`${step}e${power}`);
          if (value >= low && value <= high) ticks.push(value);
        }
      }
      return ticks;
    };
    const ticks = [[1, 2, 5], [1, 3], [1]].map(within).find((found) => found.length <= most) || within([1]);
    // Within a few per cent there is no round one.
    if (ticks.length < 2) return valueTicks(low, high, unit, most);
    const isPlain = (value) => unit !== "number" || (value >= 1e-3 && value < 1e7);
    return ticks.map((value) => [value, isPlain(value) ? amountWords(value, unit) : value.toExponential(0)]);
  };

  const placeTicks = (from, to, axis, most) => {
    const least = (to - from) / most;
    if (!(least > 0)) return [];
    let step = roundStep(least, [1, 2, 5, 10]);
    if (axis.kind === "time" && least > 1) {
      step = SECONDS.find((seconds) => seconds >= least) || 86400 * Math.ceil(least / 86400);
    } else if (axis.kind !== "time" && to - from > 4) {
      step = Math.max(1, step);
    }
    const ticks = [];
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9 * step; n += 1) {
      ticks.push([n * step, placeWords(n * step, axis, step < 1)]);
    }
    return ticks;
  };

  return { amountWords, exactWords, placeName, timeUnit, valueTicks, ratioTicks, placeTicks };
})();
