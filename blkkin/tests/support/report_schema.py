"""Checks JSON reports by a part of their schema: report_schema.py SCHEMAS SCHEMA PART FILE...

PART is a JSON pointer without the first slash, or empty for the whole schema. Prints a line for each violation.
"""

import json
import pathlib
import sys

schemas, schema, part, *files = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(schemas) / "python"))

import jsonschema  # noqa: E402

schema = json.loads(pathlib.Path(schema).read_text())
jsonschema.Draft202012Validator.check_schema(schema)
if part:
    schema = {"$ref": f"#/{part}", "properties": schema["properties"], "$defs": schema["$defs"]}
for file in files:
    document = json.loads(pathlib.Path(file).read_text())
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        print(f"{file}: {'/'.join(map(str, error.path))}: {error.message[:300]}")
