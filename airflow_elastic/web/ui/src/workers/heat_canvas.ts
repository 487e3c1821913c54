// Draws the map: one image of as many pixels as there are values, stretched to its place.
import { type RefObject, useEffect } from "react";
import type { HeatMap } from "../api/types.ts";
import { heatColour, loudness } from "./heat_scale.ts";

export function useHeatCanvas(
  canvas: RefObject<HTMLCanvasElement | null>,
  map: HeatMap,
  width: number,
  height: number,
  dark: boolean,
): void {
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || width === 0 || map.t.length === 0) return;
    const image = paint(map, dark);
    const ratio = devicePixelRatio;
    canvas.current.width = Math.round(width * ratio);
    canvas.current.height = Math.round(height * ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, canvas.current.width, canvas.current.height);
  }, [canvas, map, width, height, dark]);
}

function paint(map: HeatMap, dark: boolean): HTMLCanvasElement {
  const image = document.createElement("canvas");
  image.width = map.t.length;
  image.height = map.ranks.length;
  const context = image.getContext("2d");
  if (!context) return image;
  const pixels = context.createImageData(image.width, image.height);
  map.rows.forEach((values, row) => {
    values.forEach((seconds, column) => {
      if (seconds === null) return; // stays clear
      const [red, green, blue] = heatColour(loudness(seconds, map.p50 ?? 0), dark);
      pixels.data.set([red, green, blue, 255], 4 * (row * image.width + column));
    });
  });
  context.putImageData(pixels, 0, 0);
  return image;
}
