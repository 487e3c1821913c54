// One of a few: buttons in a row, of which one is pressed; or a list to choose from.
import { NativeSelect } from "../chakra.ts";

interface Option<Value extends string> {
  value: Value;
  word: string;
  count?: number;
}

interface Props<Value extends string> {
  label: string;
  value: Value;
  options: readonly Option<Value>[];
  onChange: (value: Value) => void;
}

export function Choice<Value extends string>({ label, value, options, onChange }: Props<Value>) {
  return (
    <div className="el-choice" role="group" aria-label={label}>
      {options.map((option) => (
        <button
          key={option.value}
          type="button"
          aria-pressed={option.value === value}
          onClick={() => onChange(option.value)}
        >
          {option.word}
          {option.count !== undefined && <span className="el-count">{option.count}</span>}
        </button>
      ))}
    </div>
  );
}

export function Select<Value extends string>({ label, value, options, onChange }: Props<Value>) {
  return (
    <NativeSelect.Root size="sm" width="auto">
      <NativeSelect.Field
        aria-label={label}
        value={value}
        onChange={(event) => onChange(event.target.value as Value)}
      >
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.word}
          </option>
        ))}
      </NativeSelect.Field>
      <NativeSelect.Indicator />
    </NativeSelect.Root>
  );
}
