// A time: how long ago, with the exact moment in the viewer's time zone on hover.
import { ago, moment } from "../format/times.ts";
import { useZone } from "../format/zone.ts";

export function Moment({ at }: { at: number | null | undefined }) {
  const zone = useZone();
  if (at === null || at === undefined) return <span>–</span>;
  return <time dateTime={new Date(at * 1000).toISOString()}>{moment(at, zone)}</time>;
}

export function Ago({ at, now }: { at: number | null | undefined; now: number }) {
  const zone = useZone();
  if (at === null || at === undefined) return <span>–</span>;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={moment(at, zone)}>
      {ago(now - at)}
    </time>
  );
}
