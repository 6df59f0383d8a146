"""Every error code, with what it means, what to do about it, and who sees it.

A code is a string that doesn't change from version to version: scripts, clients and people branch on it. `Code` is the
type of all of them, and mypy refuses one that isn't listed, wherever an error is made. `GROUPS` describes each.
docs/error-codes.md is made from here:

    python -m mcp_bridge.error_codes > docs/error-codes.md

To add a code, write it into `Code` and into the group of what raises it, and make the page anew.
`tests/project/test_error_codes.py` finds a code that is missing in one of them, or that nothing raises any more.

Standard library only. `errors` and what runs in the container import it for type checking alone, so no sandbox and no
start of the server loads these texts.
"""

from __future__ import annotations

import sys
from enum import Flag, auto
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# fmt: off
Code = Literal[
    "already_decided", "already_pending", "ambiguous_id", "approval_needed", "approval_outdated",
    "approver_needed",
    "arguments_too_deep", "arguments_unchecked", "artifact_changed", "artifact_too_large", "artifact_unreadable",
    "authentication_needed",
    "authentication_unavailable", "backup_busy",
    "backup_damaged",
    "backup_exists", "backup_failed", "backup_newer", "backup_unusable", "bad_argument", "bad_arguments",
    "bad_artifact", "bad_artifact_name", "bad_checkpoint", "bad_client_config", "bad_code", "bad_condition",
    "bad_config", "bad_context", "bad_credentials", "bad_entry", "bad_event", "bad_export", "bad_frame", "bad_host",
    "bad_identity", "bad_intent",
    "bad_key", "bad_memory", "bad_note", "bad_origin", "bad_outcome", "bad_package",
    "bad_params", "bad_passphrase",
    "bad_policy_snapshot", "bad_principal", "bad_program", "bad_proof", "bad_recipient", "bad_reference",
    "bad_request", "bad_result", "bad_secret", "bad_session", "bad_signature", "bad_state", "bad_text",
    "bad_timeout", "bad_token",
    "bad_tool_result", "bad_tools", "bad_type", "bad_value", "bad_wait", "bad_wheel",
    "bridge_at_work", "bridge_cycle", "bridge_ending", "budget_bytes",
    "budget_calls", "budget_cost", "budget_exceeded", "budget_tokens",
    "busy",
    "calls_too_large", "cancelled", "cannot_listen", "cell_ended", "certificates", "changed_file", "channel_closed",
    "client_config", "client_file_changed", "client_not_read",
    "clock_is_right", "clock_went_back", "code_too_large", "config_missing",
    "configuration", "connection_lost", "context_too_large", "cpus_not_enforced", "credentials_needed",
    "database_busy", "database_newer",
    "database_unusable",
    "demo_needs_git", "demo_needs_servers", "denied", "denied_steps", "disk_full", "divergence",
    "dry_run", "duplicate_id",
    "effect_cancelled", "empty_code", "ended", "engine", "engine_absent", "engine_alias", "engine_broken",
    "engine_failed", "engine_silent", "erased", "erasure_unfinished", "error", "event_timeout",
    "events_lost",
    "execution_running", "exit", "failed",
    "file_changed", "files", "files_full", "folder_changed", "folder_too_large", "frame_too_deep", "frame_too_large",
    "image",
    "image_build_failed", "image_missing", "image_python_too_old", "image_without_python", "in_doubt",
    "index_in_text", "index_unreachable", "input_changed", "input_refused", "input_too_large", "input_unavailable",
    "install", "insufficient_scope", "internal_error", "interpreter_exited", "interpreter_killed",
    "interrupted", "invalid_program",
    "kernel_command_line", "key_conflict", "key_missing", "key_unusable", "keyring_missing", "keyring_unusable",
    "language_unavailable",
    "ledger_behind", "ledger_damaged", "ledger_full", "ledger_head_damaged", "ledger_in_use", "ledger_missing",
    "ledger_room", "limits", "limits_refused", "log_unwritable", "login_failed", "login_needed", "login_unavailable",
    "memory_busy", "memory_not_enforced", "metrics_denied", "missing_field",
    "model_bad_answer", "model_failed", "model_timeout", "model_unavailable", "narrowed", "nested_bridge",
    "no_newuidmap", "no_runtime", "no_subordinate_ids", "no_target", "no_user_namespace", "nobody_waits",
    "node_missing",
    "not_a_principal",
    "not_allowed", "not_asked",
    "not_awaited", "not_derivable", "not_in_doubt", "not_json", "not_open_yet", "not_pending", "not_recorded",
    "not_replayable",
    "not_resumable", "not_suspended", "not_trusted", "nothing_is_lost", "nothing_to_erase", "nothing_to_trust",
    "oci_runtime_unusable", "oci_unused", "other_log", "other_program", "other_version", "out_of_memory",
    "output_limit", "output_unwritable",
    "package_changed", "package_native", "package_refused", "package_unresolved",
    "packages_failed", "packages_incompatible", "packages_timeout", "packages_too_large", "packages_unavailable",
    "payload_too_large", "pids_not_enforced", "plan_failed", "plan_too_large",
    "pool", "privileges",
    "program_cycle", "program_sensitive", "programs_too_large", "proxy", "publish_bad_answer", "publish_conflict",
    "publish_file_foreign", "publish_file_lost", "publish_file_unusable", "publish_refused", "publish_unasked",
    "publish_unreachable", "record_limit", "reference_erased", "reference_in_text", "reference_unknown",
    "request_id_in_use", "request_timeout",
    "request_too_large", "reserved_name", "restore_busy",
    "restore_exists", "restore_failed", "restore_unfinished", "result_too_large", "retired_key", "rolled_back",
    "runtime_directory", "sandbox_broken", "sandbox_lost", "sandbox_silent", "sandbox_start_failed",
    "sandbox_start_timeout", "script", "script_error", "script_missing", "script_timeout", "seccomp_off",
    "seccomp_refused", "secret_denied", "secret_elsewhere", "secret_missing", "secrets_file_busy",
    "secrets_file_damaged", "secrets_file_unreadable", "secrets_file_unsafe", "secrets_file_unwritable",
    "security_module", "server", "server_busy", "server_died", "server_exists", "server_not_configured",
    "server_start_failed", "server_unauthorized", "server_unavailable", "servers",
    "session_exists", "session_language", "session_lost", "session_not_rebuilt", "session_packages", "session_waiting",
    "stalled",
    "state_unsafe", "state_unusable", "state_unwritable", "still_waiting", "storage_vfs", "sub_steps_failed",
    "syntax_error", "tampered", "telemetry_missing", "timeout", "token_needed", "too_few_descriptors", "too_large",
    "too_many_artifacts", "too_many_calls", "too_many_clients", "too_many_events",
    "too_many_failures", "too_many_keys", "too_many_memories", "too_many_programs", "too_many_references",
    "too_many_requests", "too_many_sessions", "too_many_subjects", "too_many_tokens",
    "too_many_viewers", "too_many_waits",
    "too_much_at_once", "tool_busy", "tool_cancelled", "tool_changed", "tool_error", "tool_failed", "tool_timeout",
    "tool_unavailable", "trust_unusable", "unexpected_response", "uninstall_failed", "unknown_approval",
    "unknown_artifact", "unknown_cell",
    "unknown_doubt", "unknown_effect", "unknown_entry", "unknown_field", "unknown_http_session", "unknown_input",
    "unknown_key",
    "unknown_method", "unknown_output", "unknown_path", "unknown_principal", "unknown_profile", "unknown_program",
    "unknown_request",
    "unknown_run", "unknown_secret", "unknown_server",
    "unknown_session", "unknown_step", "unknown_tool", "unknown_trace", "unreachable",
    "untrusted_file", "untrusted_key", "unusable_file", "usage", "userns_refused", "violation", "wall_timeout",
    "witness_alone", "witness_behind", "witness_forgot", "witness_head_damaged", "witness_key_missing",
    "witness_key_unsafe", "witness_key_unusable", "witness_newer", "witness_unusable", "workspace_full",
    "wrong_identity",
    "wrong_passphrase",
]
# fmt: on


class Audience(Flag):
    """Who gets to see a code.

    Attributes:
        SCRIPT: The script, as `code` of the exception that a call raises or of a program's step.
        CLIENT: The MCP client, in the answer of a tool.
        COMMAND: Whoever runs a command: `mcp-bridge: CODE: …` on standard error, or `error.code` with `--json`.
        DOCTOR: Whoever runs `mcp-bridge doctor --json`.
        VIEWER: The trace viewer's pages.
    """

    SCRIPT = auto()
    CLIENT = auto()
    COMMAND = auto()
    DOCTOR = auto()
    VIEWER = auto()


class Description(NamedTuple):
    """What there is to know of a code.

    Attributes:
        meaning: What has happened.
        remedy: What to do about it.
        seen_by: Who sees it; None for those who see the others of its group.
        exit_status: With which a command ends, if that is the same for every command: 2 for a wrong use, 4 for a
            refusal, 5 for an execution that is suspended.
    """

    meaning: str
    remedy: str
    seen_by: Audience | None = None
    exit_status: Literal[2, 4, 5] | None = None


class Group(NamedTuple):
    """Codes that come from the same place.

    Attributes:
        title: A heading.
        about: Where these codes come from, in a sentence.
        seen_by: Who sees them.
        codes: The codes, sorted.
    """

    title: str
    about: str
    seen_by: Audience
    codes: Mapping[Code, Description]


_SCRIPT, _CLIENT, _COMMAND = Audience.SCRIPT, Audience.CLIENT, Audience.COMMAND
_DOCTOR, _VIEWER = Audience.DOCTOR, Audience.VIEWER

# fmt: off
GROUPS: Final[tuple[Group, ...]] = (
    Group("Running a script",
        "Why a run of `run_python` or `mcp-bridge run` did not begin, or how it ended.",
        _CLIENT | _COMMAND, {
        "approval_needed": Description(
            "The policy wants a person to approve the call, and nobody can be asked now.",
            "Answer with `mcp-bridge approvals` or in the viewer, then run the script again with its idempotency key.",
            _SCRIPT | _CLIENT | _COMMAND),
        "bad_code": Description(
            "The code is not Unicode text: it holds a lone surrogate, or its file is not in UTF-8, or not in the "
            "encoding that it names (PEP 263).",
            "Send the code as UTF-8 text.", exit_status=2),
        "bad_key": Description(
            "An idempotency key is too long or not printable, or text that should be a public key is not one.",
            "Use 1 to 1000 printable characters as an idempotency key. Copy a public key as `mcp-bridge audit "
            "key` prints it.",
            exit_status=2),
        "bad_session": Description(
            "The text can't be the name of a session.",
            "Use 1 to 64 letters, digits, dots, hyphens and underscores.", exit_status=2),
        "bad_timeout": Description(
            "`timeout` is not above 0, or is above `max_timeout`.",
            "Ask for a shorter time, or have the operator raise `max_timeout`.", exit_status=2),
        "bridge_cycle": Description(
            "The call has come back to the bridge that has made it, by way of bridges that are each other's servers, "
            "or has come through too many bridges. The message names the way. Nothing was run.",
            "The operator takes one of these bridges out of another's servers."),
        "busy": Description(
            "As many runs as `max_concurrent` allows are under way, and as many as `max_queued` allows wait.",
            "Try again when some have ended, or have the operator raise `max_queued`."),
        "cancelled": Description(
            "The run, the program or the step was cancelled.",
            "Start it again if you still need it.", _SCRIPT | _CLIENT | _COMMAND),
        "channel_closed": Description(
            "The script closed its channel to the bridge, or the channel broke.",
            "Close only the descriptors that the script has opened itself."),
        "code_too_large": Description(
            "The code is larger than a run may send to its sandbox.",
            "Write less code, or let it read its data by a tool.", exit_status=2),
        "divergence": Description(
            "A script that is replayed from its record does not make the recorded calls.",
            "Keep time, chance and the order of sets out of what the script decides. Nothing was done twice."),
        "dry_run": Description(
            "The run is a dry run: it has listed what it would call, or it does not do what was asked for.",
            "Run the same code without `dry_run`. A person may approve what was listed as a whole before.",
            _SCRIPT | _CLIENT | _COMMAND),
        "empty_code": Description(
            "There is no code to run.",
            "Pass Python source in `code`, a file or `-c`.", exit_status=2),
        "erased": Description(
            "The execution's inputs and outputs were erased.",
            "Use another idempotency key to run it again."),
        "exit": Description(
            "The script ended by `sys.exit` with a status other than 0.",
            "See what the script printed."),
        "image_python_too_old": Description(
            "The image has a Python older than 3.11.",
            "Configure another image, or none."),
        "in_doubt": Description(
            "A call was started, and its outcome is unknown.",
            "A person finds out and records it with `mcp-bridge execution settle`.", _SCRIPT | _CLIENT | _COMMAND),
        "internal_error": Description(
            "The bridge met a fault of its own.",
            "See its log, and report the fault.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER),
        "interpreter_exited": Description(
            "The interpreter left before the script's end, as by `os._exit`.",
            "End a script by its last line or by `sys.exit`."),
        "interpreter_killed": Description(
            "A signal ended the interpreter.",
            "See what the script does to processes, and what its libraries do."),
        "key_conflict": Description(
            "The idempotency key belongs to other code, another program, another context, or to an execution "
            "whose owner is not known.",
            "Use a key for one thing only.", exit_status=2),
        "language_unavailable": Description(
            "Scripts in this language aren't allowed here, or don't have what was asked for.",
            "Have the operator add the language to `languages`, or leave the argument out.", exit_status=2),
        "not_open_yet": Description(
            "The bridge is still being opened, so nothing was run.",
            "Call again. If it lasts, run `mcp-bridge doctor`.", _CLIENT | _VIEWER),
        "out_of_memory": Description(
            "The script used more memory than its sandbox has. The kernel has ended it, and the message says so; or it "
            "ended with a `MemoryError` (in JavaScript, by its heap), which is the script's own word.",
            "Work in smaller parts, or raise `memory`."),
        "output_limit": Description(
            "The script printed more than `max_output_size`.",
            "Print less, or keep a file with `artifact(path)`."),
        "plan_too_large": Description(
            "A dry run would list more calls, or more of their arguments, than a person can be shown whole.",
            "Split the script.", _SCRIPT),
        "sandbox_lost": Description(
            "The sandbox ended, and not by the script's doing.",
            "Run the script again, with its idempotency key."),
        "sandbox_silent": Description(
            "The sandbox stopped sending its heartbeat.",
            "Run the script again. If it lasts, the host is overloaded."),
        "sandbox_start_timeout": Description(
            "The sandbox did not answer in time after its start.",
            "Try again. If it lasts, run `mcp-bridge doctor`."),
        "script_error": Description(
            "The script raised an exception that it did not catch.",
            "Fix the script: the answer has the exception and its line."),
        "script_timeout": Description(
            "The script used up its own time; waiting for tools does not count.",
            "Ask for more with `timeout`, or do less."),
        "session_exists": Description(
            "A fork makes a new session, and there is one of that name.",
            "Give the fork another name."),
        "session_language": Description(
            "The session's cells are in another language: a session has that of its first cell.",
            "Write the cell in the session's language, or give it a session of another name."),
        "session_lost": Description(
            "The session's sandbox is gone, and it can't be rebuilt: a cell did not do the same again, was interrupted "
            "or is erased. The message names the cell, and has both sides. Nor can a fork that needs that cell be "
            "made.",
            "Fork the session before that cell, or end it to start over."),
        "session_not_rebuilt": Description(
            "The session's sandbox is gone, and rebuilding it is switched off, or over a limit, or a server that its "
            "cells have called isn't there at the moment.",
            "Have the operator change `[sessions]` or the limit, or mend the server, that the message names, fork the "
            "session at an earlier cell, or end it."),
        "session_waiting": Description(
            "The session's last cell waits, for a person or an outcome.",
            "Run the same code to resume it, cancel its execution, or end the session."),
        "still_waiting": Description(
            "The execution still waits: for a person, a time or a payload.",
            "See what it waits for with `mcp-bridge execution show`, then resume it.",
            _SCRIPT | _CLIENT | _COMMAND, exit_status=5),
        "syntax_error": Description("The code does not compile.", "Fix the code: the answer has the line."),
        "too_many_sessions": Description(
            "There are as many sessions as `max_sessions` allows.",
            "End one that you don't need."),
        "unknown_cell": Description(
            "The session has no such cell, or that cell has left nothing to continue from.",
            "See its cells with `mcp-bridge session show NAME`.", exit_status=2),
        "unknown_run": Description(
            "No run was given this idempotency key, which looks like one that the bridge makes.",
            "Ask without a key, or with one of your own.", exit_status=2),
        "unknown_session": Description(
            "There is no session of that name.",
            "See those that there are with `await runtime.sessions()` or `mcp-bridge session list`.", exit_status=2),
        "wall_timeout": Description(
            "The run took longer than a whole run may, with all waiting counted.",
            "Do less in one run."),
    }),
    Group("Calls of tools",
        "The errors that a tool call raises in a script, and with which a tool step of a program fails.",
        _SCRIPT, {
        "approval_outdated": Description(
            "The server has changed the tool since a person approved the call. Nothing was called.",
            "Start again, and have the tool approved as it is now."),
        "arguments_too_deep": Description("The arguments nest too deep.", "Pass flatter values."),
        "arguments_unchecked": Description(
            "The arguments can't be checked against the tool's schema, so it was not called.",
            "Pass less, or have the server's author fix the schema."),
        "bad_arguments": Description(
            "The arguments don't fit the tool.",
            "Call it as the message shows.", _SCRIPT | _CLIENT),
        "bad_result": Description(
            "The server's answer isn't a tool result, or can't be passed on as JSON.",
            "Report it to the server's author."),
        "bad_tool_result": Description(
            "A registered tool returned something that is not JSON.",
            "The operator fixes the tool."),
        "budget_bytes": Description(
            "The operator's limit on bytes of arguments and results is reached.",
            "Pass less, or have the operator raise the limit in `[policy]`."),
        "budget_calls": Description(
            "The operator's limit on calls is reached.",
            "Call less, or have the operator raise the limit in `[policy]`."),
        "budget_cost": Description(
            "The operator's limit on the cost of models is reached.",
            "Use the model less, or have the operator raise the limit in `[policy]`."),
        "budget_tokens": Description(
            "The operator's limit on a model's tokens is reached.",
            "Use the model less, or have the operator raise the limit in `[policy]`."),
        "calls_too_large": Description(
            "The requests of this run are larger than `max_call_size` together.",
            "Pass less, or have the operator raise `max_call_size`.", _SCRIPT | _CLIENT),
        "cell_ended": Description(
            "A thread or task that a session's earlier cell has left made a call.",
            "Start it again in the cell that needs it."),
        "connection_lost": Description(
            "The connection to a remote server broke, or a gateway answered in its place, after the call was sent: the "
            "call may have happened.",
            "Look whether it happened before you call again."),
        "denied": Description(
            "The policy or a person refused the call.",
            "`mcp-bridge policy explain SERVER.TOOL` names the rule. Do without the call, or ask the operator.",
            _SCRIPT | _CLIENT | _COMMAND, exit_status=4),
        "error": Description("A request failed, and the host gave no code.", "Read the message."),
        "interrupted": Description(
            "The call was cancelled or cut off: it may have happened.",
            "Look whether it happened before you call again."),
        "login_needed": Description(
            "A remote server wants a login that isn't there, has ended, or has too few rights. The call was not made.",
            "The user logs in with `mcp-bridge servers login NAME`."),
        "login_unavailable": Description(
            "The authorization server of a remote server gives no token at the moment. The call was not made.",
            "Try again later."),
        "not_awaited": Description("A call was written without `await`, so it never ran.", "Write `await` before it."),
        "record_limit": Description(
            "This run has recorded as much as `max_run_size` allows. The call was not made.",
            "Continue in another run, or have the operator raise `max_run_size` in `[ledger]`."),
        "reference_erased": Description(
            "The value behind a `vault://ref/` reference was erased.",
            "Get the value again."),
        "reference_unknown": Description(
            "This execution has no value behind the `vault://ref/` reference.",
            "Use a reference only in the execution that it came from."),
        "result_too_large": Description("The answer is larger than may be passed on.", "Ask the tool for less."),
        "secret_denied": Description(
            "The tool may not receive this secret.",
            "Have the operator name the tool in the secret's table."),
        "secret_missing": Description(
            "There is no value for the secret.",
            "Set it with `mcp-bridge secret set`, or where `[secrets]` says that it comes from.", _SCRIPT | _COMMAND),
        "server_busy": Description(
            "The server takes no more requests for now (429). The call was not made.",
            "Call again later; `retry_in` has the seconds, if the server says."),
        "server_died": Description(
            "The server ended while the tool ran: the call may have happened.",
            "The message has what it printed last, unless it has worked for several principals; the bridge's log has "
            "it in any case. Look whether the call happened before you call again."),
        "server_start_failed": Description(
            "The server did not start.",
            "The message says why; `mcp-bridge servers list --start` shows what it printed."),
        "server_unauthorized": Description(
            "The server wants other credentials. After 401, the call was not made; after 403, it may have happened.",
            "Mend the server's `headers`, and the secrets that they name; or its `oauth` table, if its client "
            "logs in automatically."),
        "server_unavailable": Description(
            "The server is disabled, misconfigured or unreachable, waits to be started again, or does not list the "
            "tools that it has by now. The call was not made.",
            "Read the reason in the message: try again, or fix the server's configuration."),
        "too_many_calls": Description(
            "The run has made as many requests as `max_calls` allows.",
            "Call less, or have the operator raise `max_calls`.", _SCRIPT | _CLIENT),
        "too_many_references": Description(
            "The execution has too many sensitive values.",
            "Handle fewer sensitive values in one execution."),
        "tool_busy": Description(
            "Every thread for synchronous registered tools was busy. The call was not started.",
            "Call again later, or make the tool asynchronous."),
        "tool_cancelled": Description(
            "The call was cancelled, because its server was stopped.",
            "Call again if you still need it."),
        "tool_changed": Description(
            "The server has changed the tool just now, so it was not called.",
            "Read the tool's description again, and call it as it is now."),
        "tool_error": Description("The tool itself says that it failed.", "Read its message."),
        "tool_failed": Description(
            "The server answered with a protocol error instead of a result.",
            "Read its message. If it lasts, see the server's log."),
        "tool_timeout": Description(
            "The tool gave no answer in time: the call may have happened.",
            "Look whether it happened. The operator can raise the server's `call_timeout`."),
        "tool_unavailable": Description(
            "Too many timed-out calls of a registered tool are still running.",
            "The operator finds out why the tool hangs."),
        "unknown_server": Description(
            "There is no such server.",
            "The message has the nearest names; `mcp-bridge servers list` has all.",
            _SCRIPT | _CLIENT | _COMMAND, exit_status=2),
        "unknown_tool": Description(
            "There is no such tool.",
            "The message has the nearest names.", _SCRIPT | _COMMAND, exit_status=2),
        "violation": Description(
            "The sandbox asked for something that the program or the script does not allow now. The execution has "
            "failed.",
            "Use the bridge's own modules in scripts, and don't write to its channel.", _SCRIPT | _CLIENT),
    }),
    Group("Files and memories",
        "Errors when artifacts, memories and outputs are kept or read.",
        _SCRIPT, {
        "artifact_changed": Description(
            "What is on the disk isn't the artifact whose SHA-256 the ledger recorded when its execution ended.",
            "Find out who has changed it. Run the script again, or put the file back from a copy.",
            _CLIENT | _COMMAND),
        "artifact_too_large": Description(
            "The artifacts of this run are larger than `max_artifact_size` together.",
            "Keep less, or have the operator raise `max_artifact_size`."),
        "artifact_unreadable": Description(
            "An artifact that the ledger has recorded can't be read, so it wasn't compared with its SHA-256.",
            "Run the command as the user of the bridge, and see to the modes of the files and to the disk.",
            _COMMAND),
        "bad_artifact": Description(
            "The parts of an artifact came out of order, or are not base64.",
            "Keep files with `artifact(path)`."),
        "bad_artifact_name": Description("The name is no plain file name.", "Use a file name without a folder."),
        "bad_memory": Description(
            "The memory's key or value is too long, or its file is damaged.",
            "Use a shorter key or value, or save the memory again."),
        "disk_full": Description(
            "The disk is full or can't be written.",
            "Free space, or move the state directory.", _SCRIPT | _COMMAND),
        "files_full": Description(
            "Artifacts and stored outputs have reached `max_files_size`.",
            "The operator erases some, or raises `max_files_size` in `[ledger]`."),
        "memory_busy": Description(
            "Others changed the memory each time before a function of `update_memory` was applied.",
            "Call it again, or update different keys."),
        "too_many_artifacts": Description(
            "The run has saved too many artifacts.",
            "Put several files into one archive."),
        "too_many_memories": Description(
            "There are too many memories, or they are too large together.",
            "Delete some."),
        "unknown_artifact": Description("There is no such artifact.", "Run the script again.", _CLIENT),
        "unknown_output": Description(
            "No such output is stored.",
            "Run the script again, and print less of it.", _CLIENT),
    }),
    Group("Inputs",
        "Errors about the operator's files (`[files]`).",
        _SCRIPT, {
        "file_changed": Description(
            "A file was written to, replaced or removed while it was read.",
            "Open it again once nobody writes to it."),
        "input_changed": Description(
            "A run that is resumed, replayed or rebuilt was given another file than there is now.",
            "Restore the file as it was, or run the code again from the start. Nothing was done twice.",
            _SCRIPT | _CLIENT),
        "input_refused": Description(
            "It is a link, a device, a socket, a FIFO or the bridge's own state, or its path leads elsewhere.",
            "Provide a copy, as a regular file."),
        "input_too_large": Description(
            "It has more files or bytes than `max_files` and `max_size` of its table allow.",
            "Ask for one file of it, as `NAME/FILE`, or have the operator raise the limit in `[files]`."),
        "input_unavailable": Description(
            "It isn't there, or can't be read.",
            "`runtime.files()` lists what there is."),
        "unknown_input": Description(
            "There is no input of that name, or not for this call and principal.",
            "`runtime.files()` lists what there is.", _SCRIPT | _COMMAND, exit_status=2),
        "workspace_full": Description(
            "The file doesn't fit into `/workspace`.",
            "Read it as a stream, `runtime.open_input(NAME)`; or the operator raises `workspace_size` and `memory`."),
    }),
    Group("Packages that scripts ask for",
        "Why a script did not get the packages of `packages=` or `runtime.install`.",
        _SCRIPT | _CLIENT | _COMMAND, {
        "bad_package": Description(
            "The text is not the requirement of a package: a name, perhaps with versions.",
            "Write `polars`, or `requests>=2,<3`.", exit_status=2),
        "bad_wheel": Description(
            "The package's wheel has files that it may not have, too many of them, or says that it is another package.",
            "Ask for another version or another package, and tell the operator."),
        "index_unreachable": Description(
            "The operator's package index could not be reached, or gave no usable answer.",
            "Try again later; the bridge's log has what uv says."),
        "package_changed": Description(
            "The index has other files for a recorded package than it had: their hashes differ.",
            "Tell the operator: a package whose files change is not to be trusted."),
        "package_native": Description(
            "The package has compiled modules, which can't be added to a sandbox that runs.",
            "Ask for it in the call: `packages=[...]`, or `mcp-bridge run --package`."),
        "package_refused": Description(
            "The package, this version of it, or something that it needs isn't on the operator's list.",
            "The message has the line that the operator would write."),
        "package_unresolved": Description(
            "The index has no set of wheels that meets the requirements.",
            "Check the name and the versions. Nothing is built, so there has to be a wheel."),
        "packages_incompatible": Description(
            "The packages that the run or the session began with have compiled modules for another Python, or another "
            "kind of machine, than the bridge has now. Nothing was run, and what waits still waits.",
            "Run the bridge with the Python that the message names."),
        "packages_timeout": Description(
            "The packages were not found or fetched in time.",
            "Try again, or have the operator raise `timeout` in `[install]`."),
        "packages_too_large": Description(
            "The packages are too many or too large, or there is no room for them in the sandbox.",
            "Ask for less, or have the operator raise the limit in `[install]`."),
        "packages_unavailable": Description(
            "Packages can't be installed here: uv is missing, or the operator's own image is used.",
            "The message says what the operator can do."),
        "session_packages": Description(
            "The session's sandbox does not have the package: a session's packages are those of its first cell.",
            "Use `await runtime.install(name)` in the cell, or begin another session."),
    }),
    Group("Programs",
        "Errors when a program is saved, started or resumed.",
        _SCRIPT | _CLIENT | _COMMAND, {
        "bad_context": Description("The context is no JSON object.", "Pass names and values.", exit_status=2),
        "bad_program": Description(
            "A file or standard input has no program.",
            "Write an object with a list of `steps`.", _COMMAND, exit_status=2),
        "bad_request": Description(
            "A request has a field that is too long or of the wrong form, or a method that its path doesn't take.",
            "Read the message.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER),
        "bad_state": Description(
            "The stored state of a program or an execution can't be used: it was changed, or another version wrote it.",
            "Delete the program and save it again. The execution can't be resumed."),
        "context_too_large": Description(
            "The context is too large, or has too many sensitive values.",
            "Pass less: a program can read large data by a tool.", exit_status=2),
        "denied_steps": Description(
            "The policy would deny steps of the program in any case, so it was not begun.",
            'Leave these steps out, or set `denied_steps = "warn"` in `[programs]`.'),
        "effect_cancelled": Description(
            "The program no longer needs this effect.",
            "Nothing: the program continues without it.", _SCRIPT),
        "invalid_program": Description(
            "The program is not valid.",
            "Fix what the message lists; see [Faults of a program](#faults-of-a-program).", exit_status=2),
        "narrowed": Description(
            "The execution may use servers that this script was not given.",
            "Resume it without `servers`, or with all that it was started with.", _SCRIPT),
        "not_suspended": Description(
            "The execution is not suspended, or has been resumed already.",
            "See its status with `traces.get` in a script, or with `mcp-bridge execution show`."),
        "payload_too_large": Description("The payload is too large.", "Pass less.", _SCRIPT),
        "program_sensitive": Description(
            "The program has sensitive values where no reference can stand for them.",
            "Use other names for its steps, and pass such values in its context.", _SCRIPT | _CLIENT),
        "programs_too_large": Description(
            "The saved programs that this one runs are too large together.",
            "Have it run fewer or smaller programs."),
        "reserved_name": Description(
            "The name is empty, or is the operator's, or looks like it.",
            "Use another name.", exit_status=2),
        "too_many_programs": Description(
            "Too many programs are saved or running.",
            "Delete some, or await some.", _SCRIPT | _CLIENT),
        "too_many_subjects": Description(
            "A context, or a call's arguments, name more than 1,000 people in the fields of `subject_fields`.",
            "Pass fewer at a time.", _SCRIPT | _CLIENT | _COMMAND),
        "unknown_program": Description(
            "There is no such program.",
            "`mcp-bridge program list` has them.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER, exit_status=2),
        "unknown_request": Description(
            "The host does not answer this request.",
            "Use the bridge's own modules in scripts.", _SCRIPT),
        "unknown_trace": Description(
            "There is no such execution.",
            "`mcp-bridge execution list` has them.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER, exit_status=2),
    }),
    Group("How steps and programs end",
        "The `code` of a step that failed, of a program that ended badly, and of an event that a program's machine "
        "refused. Codes of calls and models stand there, too.",
        _SCRIPT | _CLIENT | _COMMAND, {
        "already_pending": Description(
            "The effect is pending already.",
            "Report it as a fault of the bridge."),
        "bad_outcome": Description(
            "The outcome of an effect can't be taken by the program.",
            "Report it to the tool's author, with what the tool answered."),
        "bad_value": Description(
            "A value has the wrong form: of a field of a program, of a payload, or of an outcome.",
            "Pass what the message asks for."),
        "budget_exceeded": Description(
            "The program has used up its own `max_…` limits.",
            "Raise the limit in the program, or do less."),
        "ended": Description("The execution has ended, so nothing can happen to it.", "Start it again."),
        "failed": Description("The effect or the step failed, and gave no code of its own.", "Read the message."),
        "no_target": Description("A condition has no target for this case.", "Give the step `then` and `otherwise`."),
        "not_allowed": Description(
            "The model's answer isn't one of `allowed_outputs`.",
            "Have the prompt name them, or add the answer."),
        "not_json": Description("A value can't be written as JSON.", "Pass text, numbers, lists and objects of them."),
        "not_pending": Description("The effect isn't pending.", "See what waits with `mcp-bridge execution show`."),
        "not_resumable": Description(
            "The effect waits for a person or for its time, and takes no payload.",
            "Answer with `mcp-bridge approvals`, or wait."),
        "other_program": Description(
            "The state belongs to another program.",
            "Resume the execution with the program that it was begun with."),
        "other_version": Description("The state was written by another version.", "Use that version."),
        "stalled": Description(
            "Too many steps in a row have changed nothing (`max_stalled_steps`).",
            "Fix the loop, or raise the limit."),
        "sub_steps_failed": Description("Sub-steps of a parallel step failed.", "See the sub-steps' own errors."),
        "timeout": Description("The effect did not end in time.", "Raise `timeout_seconds` of the step."),
        "too_large": Description(
            "A value or a program is too large, or programs nest too deep; in the viewer: more than it takes or draws.",
            "Pass less, or split it.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER),
        "too_much_at_once": Description(
            "One event would make the program do too much in one step.",
            "Use smaller lists and fewer steps without effects."),
        "unknown_effect": Description("No such effect is awaited.", "Report it as a fault of the bridge."),
    }),
    Group("Faults of a program",
        "What the validator says of a program: the `code` of each fault, beside its `path` and `message`. "
        "`bad_value`, `not_json`, `too_large`, `unknown_program` and `unknown_step` can be there, too.",
        _SCRIPT | _CLIENT | _COMMAND, {
        "bad_condition": Description(
            "The condition can't be read, or has no answer.",
            "Write it as the message shows."),
        "bad_reference": Description("The text isn't a reference.", "Write a reference such as `$items`."),
        "bad_type": Description("The value has the wrong type.", "Use the type that the message names."),
        "duplicate_id": Description("Two steps have the same id.", "Give each its own."),
        "index_in_text": Description("Brackets in a text are text.",
            "Write dots, as the message shows. Only a condition, `over` and `seconds` take names in quotes."),
        "missing_field": Description("A field is missing.", "Add it."),
        "program_cycle": Description("Programs run each other without end.", "Break the cycle.", _COMMAND),
        "reference_in_text": Description(
            "The reference is text: at this place none is filled in.",
            "Write what it stands for, refer to it in a later step, or write another program for each case."),
        "unknown_field": Description(
            "There is no such field here.",
            "Remove it; the message may have the nearest name."),
        "unknown_step": Description(
            "There is no such step, or it does not call that tool.",
            "The message has the nearest names.", exit_status=2),
        "unreachable": Description("No other step leads to this one.", "Point a step at it, or remove it."),
    }),
    Group("Models",
        "Errors of a model step, or when a model is asked to write a program.",
        _SCRIPT | _COMMAND, {
        "bad_intent": Description(
            "The intent is empty or too long.",
            "Say in a few sentences what the program shall do."),
        "model_bad_answer": Description(
            "The model answered without text, or with too much, or its answer was cut off at the limit of tokens.",
            "Raise or set `max_tokens`."),
        "model_failed": Description("The provider or the client refused.", "Read its words in the message."),
        "model_timeout": Description(
            "The model did not answer in time.",
            "Raise what the message names: the step's `timeout_seconds`, `timeout` in `[model]`, or an embedding"
            " model's in `[search]`.",
        ),
        "model_unavailable": Description(
            "No model is configured, its library is not installed, or the client can't be asked.",
            "Add a `[model]` table; install the extra that the message names."),
        "plan_failed": Description(
            "The model wrote no valid program.",
            "Say more exactly what the program shall do, or use a stronger model."),
    }),
    Group("Waits and events",
        "Errors of a script that waits for a time or an event, and of who sends an event.",
        _SCRIPT | _CLIENT | _COMMAND, {
        "bad_event": Description(
            "This can't be the name of an event.",
            "Use up to 200 printable characters, not a hyphen first, nor a space at an end.", exit_status=2),
        "bad_wait": Description(
            "The end of the wait isn't a valid time, or is too far away.",
            "Wait for less than a year.", _SCRIPT),
        "event_timeout": Description(
            "The event did not come within the time-out of `wait_event`. It is a `TimeoutError`, too.",
            "Catch it, or wait for longer.", _SCRIPT),
        "nobody_waits": Description(
            "No execution waits for an event of this name, so it was not sent.",
            "See what waits with `mcp-bridge execution list`. An event for one execution (`--execution ID`) "
            "is stored until it is waited for.", _COMMAND),
        "too_many_events": Description(
            "Too many events that were sent to the execution have not been waited for.",
            "Send no more before the script has taken some, or cancel it."),
        "too_many_waits": Description(
            "The script has reached the limit of waits for one script.",
            "Continue in a new script.", _SCRIPT),
    }),
    Group("Approvals and calls in doubt",
        "Errors when a person answers a question, or settles a call that is in doubt.",
        _COMMAND | _VIEWER, {
        "already_decided": Description(
            "Somebody has answered the question already.",
            "Nothing: the first answer counts.", exit_status=4),
        "ambiguous_id": Description(
            "Several executions, questions or calls match the id.",
            "Write more of the id.", _COMMAND, exit_status=2),
        "approver_needed": Description(
            "A principal that isn't an approver tried to decide.",
            "Ask an approver, or set `approver = true` in `[principals.NAME]`.", _VIEWER),
        "not_in_doubt": Description(
            "No call of this execution, or not this one, is in doubt.",
            "See what waits with `mcp-bridge execution show`.", _COMMAND),
        "unknown_approval": Description(
            "The execution has asked no such question.",
            "`mcp-bridge approvals list` has those that are open.", exit_status=2),
        "unknown_doubt": Description(
            "No such call is in doubt.",
            "The message lists those that are.", _COMMAND, exit_status=2),
    }),
    Group("The channel to the sandbox",
        "A message that breaks the channel's rules. The script's own values can be too large or too deep; the rest "
        "happens when a script writes to the channel.",
        _SCRIPT | _CLIENT, {
        "bad_frame": Description("A line is not JSON, or not a message of the channel.", "Don't write to the channel."),
        "bad_params": Description("A message's parameters don't fit its method.", "Pass what the message asks for."),
        "frame_too_deep": Description("A value nests too deep for the channel.", "Pass flatter values."),
        "frame_too_large": Description(
            "A value is too large for the channel.",
            "Pass less, or keep a file with `artifact(path)`."),
        "unexpected_response": Description(
            "The sandbox answered a question that was never asked.",
            "Don't write to the channel."),
        "unknown_method": Description(
            "The sandbox sent a message that the channel doesn't have, or not in this form.",
            "Don't write to the channel."),
    }),
    Group("Containers and images",
        "Why a sandbox could not be started.",
        _CLIENT | _COMMAND, {
        "engine_failed": Description(
            "A command of the container engine failed.",
            "Read the engine's words in the message, and run `mcp-bridge doctor`."),
        "image_build_failed": Description(
            "The image could not be built.",
            "Read the message; `mcp-bridge image build` tries again."),
        "image_missing": Description(
            "The image isn't on this machine, and images are never pulled.",
            "`mcp-bridge image build`, or load it with the engine's `load`."),
        "image_without_python": Description(
            "The image has no `python3`.",
            "Use one with Python 3.11 or later on its PATH, or none."),
        "no_runtime": Description(
            "No container engine works here.",
            "`mcp-bridge doctor` says why for each, and what to install."),
        "node_missing": Description(
            "Scripts in JavaScript are allowed, and there is no Node that could go into the image.",
            "Install Node 22.15 or later on this machine, or let the bridge reach the package index."),
        "packages_failed": Description(
            "Packages could not be installed.",
            "See the message; `mcp-bridge doctor` checks proxies and certificates."),
        "sandbox_broken": Description(
            "A script in the sandbox failed when `doctor` tried one.",
            "Read the message.", _COMMAND),
        "sandbox_start_failed": Description(
            "The engine could not start the container, or it ended before the script began.",
            "Try again; if it lasts, run `mcp-bridge doctor`."),
        "unknown_profile": Description(
            "There is no such package profile.",
            "The message has the profiles.", _COMMAND, exit_status=2),
    }),
    Group("Configuration and trust",
        "Errors in the configuration, and in files that come with a folder.",
        _COMMAND | _CLIENT, {
        "bad_client_config": Description(
            "A client's configuration file can't be read, or has no servers where they belong.",
            "Fix the file; the message has its line.", _COMMAND),
        "bad_config": Description(
            "The configuration has a wrong key or value.",
            "The message has the file, the line, and what to write.", exit_status=2),
        "bad_policy_snapshot": Description(
            "The policy that is stored with an execution can't be read.",
            "It was changed, or another version stored it: use that version."),
        "bad_tools": Description(
            "A registered tool can't be loaded as it is declared.",
            "Fix the module; the message has the place.", exit_status=2),
        "changed_file": Description(
            "The folder's file, or what it loads or changes, isn't what was trusted.",
            "`mcp-bridge trust` shows what it would do, and asks.", _COMMAND),
        "client_file_changed": Description(
            "Another program has changed a file while a command was about to write it. Nothing was written.",
            "Run the command again. If the file is a client's that is at work, end it before.", _COMMAND),
        "config_missing": Description(
            "There is no such configuration file.",
            "Name a file that is there.", exit_status=2),
        "folder_changed": Description(
            "A file was changed while it was read, so it isn't what was trusted.",
            "Run `mcp-bridge trust` again."),
        "folder_too_large": Description(
            "The folder's file would load more than a person can review.",
            "Give tools and programs folders of their own, and name these."),
        "log_unwritable": Description(
            "`log_file` can't be written.",
            "Name a file in a folder that is there.", _COMMAND, exit_status=2),
        "nested_bridge": Description(
            "This bridge was started by a bridge, as one of its servers.",
            "Take it out of the servers, or set `MCP_BRIDGE_ALLOW_SELF_SERVER=1`.", _COMMAND, exit_status=4),
        "not_asked": Description(
            "The command needs a confirmation, and there is no terminal to ask in. Nothing was done.",
            "Run it in a terminal, or with `--yes`.", _COMMAND, exit_status=4),
        "not_trusted": Description(
            "Nothing in this folder was trusted.",
            "`mcp-bridge trust --list` has what is.", _COMMAND),
        "nothing_to_trust": Description(
            "The folder has no file that could be trusted.",
            "Name the folder that has one.", _COMMAND, exit_status=2),
        "server_exists": Description(
            "There is another server of this name.",
            "Choose another name.", _COMMAND, exit_status=2),
        "server_not_configured": Description(
            "There is no server of this name in the file.",
            "`mcp-bridge servers list` has them.", _COMMAND, exit_status=2),
        "telemetry_missing": Description(
            "`[telemetry]` configures what needs a library that isn't installed.",
            "Install `mcp-code-bridge[otel]`, or `mcp-code-bridge[prometheus]` for `telemetry.listen`.", exit_status=2),
        "trust_unusable": Description(
            "The records of what is trusted can't be used.",
            "Check their owner and mode, or remove them and trust the folders again."),
        "untrusted_file": Description(
            "A folder's own file takes no part: its content isn't trusted.",
            "`mcp-bridge trust` shows what it would do, and asks.", _COMMAND),
        "unusable_file": Description(
            "A folder's own file takes no part: it can't be read or judged.",
            "Read the reason in the message.", _COMMAND),
    }),
    Group("Secrets",
        "Errors when secrets are read or set.",
        _COMMAND, {
        "bad_secret": Description(
            "The value is empty, is not text, or can be guessed.",
            "Use a longer one of more kinds of characters.", exit_status=2),
        "keyring_missing": Description(
            "The library for the system's keyring isn't installed.",
            "Install `mcp-code-bridge[keyring]`, or use the file."),
        "keyring_unusable": Description("The system's keyring can't be used.", "Unlock it, or use the file."),
        "login_failed": Description(
            "A login to a remote server didn't succeed. Nothing has changed.",
            "Read the reason in the message, and log in again with `mcp-bridge servers login NAME`."),
        "secret_elsewhere": Description(
            "The secret is configured to come from elsewhere.",
            "Set it there, or change its table.", exit_status=2),
        "secrets_file_busy": Description(
            "Another process is writing the file of secrets.",
            "Find it with `fuser`, and wait for its end."),
        "secrets_file_damaged": Description(
            "The file of secrets is not what this version writes.",
            "Move the file away, and set the secrets again."),
        "secrets_file_unreadable": Description("The file of secrets can't be read.", "Check its owner and mode."),
        "secrets_file_unsafe": Description(
            "The file of secrets can be read or written by others.",
            "`chmod 600`, and change secrets that somebody may have read."),
        "secrets_file_unwritable": Description(
            "The file of secrets can't be written.",
            "Free the disk, or mount it writable; remove something where it would be over 16 MiB."),
        "unknown_secret": Description("No such secret is stored.", "`mcp-bridge secret list` has them.", exit_status=2),
    }),
    Group("Principals over HTTP",
        "Why a request over HTTP is refused for whoever sends it; and errors of `mcp-bridge principal`.",
        _CLIENT | _VIEWER, {
        "authentication_unavailable": Description(
            "Credentials can't be verified now (503): the authorization server's keys or the file of tokens can't be "
            "read.",
            "Try again later. The bridge's log says why."),
        "bad_credentials": Description(
            "A request has several credentials that contradict each other (400).",
            "Send one Authorization header, and the certificate of the same principal."),
        "bad_principal": Description(
            "The name can't be that of a principal over HTTP.",
            "Use 1 to 64 of a-z, 0-9, `-`, `_` and `.`, a letter or digit first, and not `local`.",
            _COMMAND, exit_status=2),
        "bad_token": Description(
            "The bearer token is wrong, has expired or was revoked (401).",
            "Get another one: from `mcp-bridge principal add` or `rotate`, or from the authorization server."),
        "credentials_needed": Description(
            "A request came without credentials (401).",
            "Send `Authorization: Bearer TOKEN`."),
        "insufficient_scope": Description(
            "The access token has too few scopes (403).",
            "Ask the authorization server for those that the message names."),
        "metrics_denied": Description(
            "The metrics name all principals, and this one may not see all.",
            "Set `sees_all` for the principal that Prometheus asks as."),
        "not_a_principal": Description(
            "The sender is authenticated, but isn't (or is no longer) a principal of this bridge (403). Its "
            "running executions are cancelled, and suspended ones can't be resumed.",
            "The operator adds them to `[principals]`.", _CLIENT | _COMMAND | _VIEWER),
        "too_many_failures": Description(
            "Too many requests with wrong credentials came from this address (429).",
            "Use the right ones, which are always taken."),
        "too_many_tokens": Description(
            "There are as many tokens of principals as there may be.",
            "Revoke some with `mcp-bridge principal revoke`.", _COMMAND),
        "unknown_principal": Description(
            "No such principal has a token, or not this one.",
            "`mcp-bridge principal list` has all tokens.", _COMMAND, exit_status=2),
    }),
    Group("The ledger on disk",
        "Why the record of executions can't be used or written. Without it nothing is done.",
        _CLIENT | _COMMAND, {
        "bad_text": Description(
            "A text holds a lone surrogate, half of a pair such as that of an emoji.",
            "Send Unicode text.", _CLIENT | _VIEWER),
        "clock_is_right": Description(
            "The clock is not behind the last entry, so there is nothing to accept.",
            "Nothing.", _COMMAND),
        "clock_went_back": Description(
            "The clock is behind the last entry.",
            "Set the clock; if it is right now, `mcp-bridge audit accept-clock`. Then restart the bridge."),
        "database_busy": Description("Another process uses the ledger, and has not let it go in time.", "Try again."),
        "database_newer": Description(
            "A later version of this program wrote the ledger.",
            "Use that version, or another `state_dir`."),
        "database_unusable": Description(
            "The ledger's file, or a file next to it, can't be read.",
            "Read the reason; check its owner and mode, or restore a backup.", _CLIENT | _COMMAND | _VIEWER),
        "erasure_unfinished": Description(
            "The erasure is done, and something of the erased could not be removed yet.",
            "It is removed at the bridge's next start, or by the next `mcp-bridge erase`.", _COMMAND),
        "execution_running": Description(
            "The execution is running, so it can't be erased.",
            "Erase it when it has ended.", _COMMAND),
        "key_missing": Description("A key file is gone.", "Put it back from a copy."),
        "key_unusable": Description(
            "A key can't be read, is not the right one, or can be read by others.",
            "Do what the hint says; `chmod 600` if the mode is wrong."),
        "ledger_behind": Description(
            "The ledger has less than it had: an older copy was put in its place.",
            "Keep a copy, and put the ledger back as it was, with its `-wal` file."),
        "ledger_damaged": Description("The ledger is damaged.", "Restore a backup: `mcp-bridge restore`."),
        "ledger_full": Description(
            "The ledger, or its disk, is full. Nothing new begins.",
            "`mcp-bridge erase`, or raise `max_size` in `[ledger]`; make room on the disk.",
            _SCRIPT | _CLIENT | _COMMAND),
        "ledger_head_damaged": Description(
            "The file that says how far the ledger had come was changed.",
            "Put the state directory back from a copy, or accept the loss as the hint says."),
        "ledger_in_use": Description(
            "Other processes use the ledger, so it can't be compacted.",
            "End every bridge that uses this state directory, then try again.", _COMMAND),
        "ledger_missing": Description(
            "The ledger's key is there, and the ledger is gone.",
            "Put it back, or restore a backup elsewhere."),
        "not_derivable": Description(
            "No program can be made from the execution.", "Read the reason in the message.", _COMMAND),
        "not_recorded": Description(
            "The ledger can't be written, so nothing is done any more. What had begun is answered with its execution.",
            "Read the reason; fix the disk, and restart the bridge.", _SCRIPT | _CLIENT | _COMMAND | _VIEWER),
        "not_replayable": Description("The execution can't be replayed.", "Read the reason in the message.", _COMMAND),
        "nothing_is_lost": Description(
            "The ledger has all that it had, so there is no loss to accept.",
            "Nothing.", _COMMAND),
        "nothing_to_erase": Description(
            "There is nothing of this to erase.",
            "See what is stored with `mcp-bridge execution show`.", _COMMAND),
        "restore_unfinished": Description(
            "A backup is being restored here, or that was cut off.",
            "Restore it again with `mcp-bridge restore FILE`."),
        "state_unsafe": Description("Others can write the state directory.", "Do what the hint says."),
        "state_unusable": Description(
            "The state directory can't be made or used: by its owner or mode, on a read-only file system, or on one"
            " without file locks.",
            "Correct what the reason names, or set `MCP_BRIDGE_STATE_DIR`."),
        "state_unwritable": Description(
            "A file in the state directory can't be written when a container is started.",
            "Check its owner and mode, and whether its file system is read-only."),
        "too_many_keys": Description(
            "The log's key was rotated as often as a verifier accepts.",
            "Move the state directory away: another log begins.", _COMMAND),
        "unknown_entry": Description(
            "The log or the execution has no such entry.",
            "Use a number that is there.", _COMMAND | _VIEWER, exit_status=2),
    }),
    Group("Proofs and checkpoints",
        "What the verification of a log, an export, a proof or a checkpoint has found.",
        _COMMAND, {
        "bad_checkpoint": Description(
            "A line isn't a checkpoint, or checkpoints don't follow each other.",
            "Take the file from its source again."),
        "bad_entry": Description(
            "An entry of the log is not well formed.",
            "Keep a copy of the file, and find out who has changed it."),
        "bad_export": Description("The file isn't an export, or is cut off.", "Export the log again."),
        "bad_note": Description("This isn't a signed note of a log.", "Take it from its source again."),
        "bad_proof": Description(
            "The proof does not show what it claims.",
            "Don't trust what it is about; ask for another."),
        "bad_signature": Description("A signature is wrong.", "Don't trust what it is about."),
        "other_log": Description("The checkpoint is of another log.", "Use a checkpoint of this log."),
        "retired_key": Description(
            "A replaced key has signed a later checkpoint: anyone who has the old key could have made it.",
            "Ask for a checkpoint signed with the log's current key."),
        "rolled_back": Description(
            "A checkpoint has more entries than the log.",
            "Entries are missing: keep both, and find out why."),
        "tampered": Description(
            "Entries are not those that were signed.",
            "Keep a copy, and find out who has changed it."),
        "unknown_key": Description(
            "No known key has signed it, or a cosignature has an impossible time.",
            "Name the key with `--key`, from a source that you trust."),
        "untrusted_key": Description(
            "No trusted key of the log has signed the last checkpoint.",
            "Name the log's key with `--key`, from a source that you trust."),
    }),
    Group("Publishing and witnesses",
        "Errors when checkpoints are published, and of a witness.",
        _COMMAND, {
        "publish_bad_answer": Description(
            "The target's answer is not one that it may give.",
            "See whether its address is right."),
        "publish_conflict": Description(
            "What was published contradicts the ledger.",
            "If you restored an old backup or accepted a loss, name a new file or another witness. Otherwise somebody "
            "has changed the ledger: keep both, and compare them."),
        "publish_file_foreign": Description(
            "The target's file holds something else than checkpoints of this log.",
            "Name another file."),
        "publish_file_lost": Description(
            "The target's file no longer has what was published.",
            "Mount the storage, put a copy back, or name another file."),
        "publish_file_unusable": Description("The target's file can't be used.", "Do what the hint says."),
        "publish_refused": Description(
            "The target refused the checkpoint.",
            "See whether it has this log's key, and whether its address is right."),
        "publish_unasked": Description(
            "The target accepts checkpoints and can't be asked for them.",
            "Verify with `--checkpoint` and the notes that are stored there."),
        "publish_unreachable": Description(
            "The target can't be reached, or does not answer.",
            "Check the network. The bridge retries automatically."),
        "witness_alone": Description(
            "The directory is a witness's, and has no ledger to back up.",
            "Stop the witness, and copy its files as the hint says."),
        "witness_behind": Description(
            "The witness knows less than it has cosigned: an older copy was put in its place.",
            "Put its file back as it was, or begin as another witness."),
        "witness_forgot": Description(
            "The witness has its key, and not what it has cosigned.",
            "Put the file back, or begin as another witness."),
        "witness_head_damaged": Description(
            "The file that says how much the witness has cosigned was changed.",
            "Put the directory back from a copy."),
        "witness_key_missing": Description("The witness's key is gone.", "Restore it, or start as another witness."),
        "witness_key_unsafe": Description(
            "Others can read the witness's key.",
            "`chmod 600`; make a new key if somebody may have read it."),
        "witness_key_unusable": Description(
            "The witness's key can't be made or read, or is invalid.",
            "Restore it from a backup."),
        "witness_newer": Description(
            "A later version of this program wrote the witness's file.",
            "Use that version, or another `state_dir`."),
        "witness_unusable": Description(
            "What the witness has cosigned can't be read or written.",
            "Fix the disk, or put the file back as it was."),
    }),
    Group("Backup and restore",
        "Errors when a backup is made or restored.",
        _COMMAND, {
        "backup_busy": Description("Another backup is being made.", "Wait for its end."),
        "backup_damaged": Description("The backup is damaged. Nothing was restored.", "Take another one."),
        "backup_exists": Description("The file to write is there already.", "Name another file.", exit_status=2),
        "backup_failed": Description(
            "The backup could not be written, or not be read again.",
            "Read the reason, and try again."),
        "backup_newer": Description("A later version of this program wrote the backup.", "Use that version."),
        "backup_unusable": Description("The file is neither a backup nor a ledger.", "Name another one."),
        "bad_identity": Description(
            "A line isn't an age identity.",
            "Name a file as `mcp-bridge backup-key` writes it.", exit_status=2),
        "bad_passphrase": Description(
            "The passphrase is empty, was typed differently, or is not text.",
            "Type it again.", exit_status=2),
        "bad_recipient": Description(
            "The text isn't an age recipient.",
            "Name a key that begins with `age1`.", exit_status=2),
        "restore_busy": Description("Another restore into this directory is under way.", "Wait for its end."),
        "restore_exists": Description(
            "The directory has a ledger or keys already.",
            "Move it away, or name another one.", exit_status=2),
        "restore_failed": Description(
            "The directory can't be written or the file not be checked. Nothing has changed.",
            "Read the reason, and try again."),
        "wrong_identity": Description(
            "The backup is encrypted for others than this identity.",
            "Name the right file with `--identity`."),
        "wrong_passphrase": Description("The passphrase does not open the backup.", "Type the right one."),
    }),
    Group("The command line, the viewer and HTTP",
        "Other errors of commands, of the viewer (`mcp-bridge ui`), and of MCP over HTTP.",
        _COMMAND, {
        "authentication_needed": Description(
            "`mcp-bridge serve` was to listen beyond this machine, or to show its viewer, and would not know who asks.",
            "Listen on 127.0.0.1, use `mcp-bridge ui`, or configure how clients authenticate.", _COMMAND | _VIEWER,
            exit_status=4),
        "bad_argument": Description(
            "An option or an argument is wrong.",
            "Do what the message says.", _CLIENT | _COMMAND | _VIEWER, exit_status=2),
        "bad_host": Description(
            "The request's Host header is not the address of the viewer or of the server.",
            "Use the address that the command printed. For another name, add it to `http.allowed_hosts`.",
            _VIEWER | _CLIENT),
        "bad_origin": Description(
            "A web page of another origin made the request.",
            "Use the viewer's own pages. For a page that may use the server, add it to `http.allowed_origins`.",
            _VIEWER | _CLIENT),
        "bridge_at_work": Description(
            "A bridge uses the state directory, so nothing was removed.",
            "End the clients and commands that use it; `pgrep -af mcp-bridge` lists them.", exit_status=4),
        "bridge_ending": Description("The bridge is being stopped.", "Send the request again.", _CLIENT),
        "cannot_listen": Description(
            "The address can't be listened on.",
            "Name another with `--listen HOST:PORT`, or `--host` and `--port`."),
        "demo_needs_git": Description("The demonstration's git repository could not be made.", "Install git."),
        "demo_needs_servers": Description(
            "The demonstration's servers are not there.",
            "`make demo` in a checkout installs them."),
        "events_lost": Description(
            "A client resumes an HTTP stream that is no longer stored, or whose answer isn't "
            "(`http.replay_size`). The request itself was handled.",
            "The error has the execution, if it is known; the same call with the same idempotency key returns "
            "the same answer, and isn't made again.", _CLIENT),
        "output_unwritable": Description("Standard output can't be written.", "Send it elsewhere, or make room there."),
        "request_id_in_use": Description(
            "A session's request has the id of another that isn't answered yet. It was not begun.",
            "Give each request of a session an id of its own.", _CLIENT),
        "request_timeout": Description(
            "A request took longer to arrive than `http.read_timeout`.",
            "Send it faster.", _CLIENT | _VIEWER),
        "request_too_large": Description(
            "A request has more than `http.max_body_size`, or a body though it isn't a POST request.",
            "Send less, or have the operator raise the limit.", _CLIENT | _VIEWER),
        "script_missing": Description(
            "No script was given, it can't be read, or two were given.",
            "Give a file, `-c` or standard input.", exit_status=2),
        "token_needed": Description(
            "The request lacks the viewer's token.",
            "Open the address that `mcp-bridge ui` printed.", _VIEWER),
        "too_few_descriptors": Description(
            "The process may not have as many files open as a sandbox, or `http.max_connections`, needs.",
            "Raise the hard limit, such as LimitNOFILE of systemd, or lower the setting.",
            _CLIENT | _COMMAND, exit_status=4),
        "too_many_clients": Description(
            "As many sessions are open over HTTP as `http.max_sessions` or `http.max_sessions_per_principal` allow, "
            "and no principal with more has an idle one.",
            "End sessions that aren't used, or raise the limit.", _CLIENT),
        "too_many_requests": Description(
            "A principal makes more requests a minute than it may, or has too many large ones in progress.",
            "Wait as long as the answer's Retry-After says.", _CLIENT | _VIEWER),
        "too_many_viewers": Description("Too many pages of the viewer are open.", "Close some.", _VIEWER),
        "uninstall_failed": Description("A file can't be removed.", "Check its owner and mode, and run it again."),
        "unknown_http_session": Description(
            "A request over HTTP names a session that doesn't exist, or has ended: it was closed, had no "
            "request for `http.session_idle_timeout`, or made room for another principal's. This request "
            "started nothing; an earlier one, whose stream it resumes, may have.",
            "Start another with `initialize`, as the status 404 tells clients.", _CLIENT),
        "unknown_path": Description(
            "The viewer or the server has nothing at this path.",
            "Follow the viewer's links. MCP is at `http.path`.", _VIEWER | _CLIENT),
        "usage": Description(
            "The command line is wrong.",
            "Do what the message says; `--help` has all options.", exit_status=2),
    }),
    Group("What doctor finds",
        "The `code` of a finding in `mcp-bridge doctor --json` that isn't a command's error. An `ok` level says "
        "that all is well with it.",
        _DOCTOR, {
        "certificates": Description(
            "A variable names certificates that are not there.",
            "Name what is there, or unset it."),
        "client_config": Description("A client's configuration file can't be read.", "Fix the file, for its client."),
        "client_not_read": Description(
            "Another client's file lists servers that the bridge does not read.",
            "Copy those that belong behind the bridge into its configuration (mcp-bridge servers import), or name the "
            "client in client_configs."),
        "configuration": Description("Which configuration file is used.", "Nothing."),
        "cpus_not_enforced": Description(
            "The engine does not enforce the limit of processors.",
            "Delegate the control groups, as the hint says."),
        "engine": Description("Which container engine is used.", "Nothing."),
        "engine_absent": Description("The engine is not installed.", "Install podman or docker, if no other works."),
        "engine_alias": Description("The docker command is an alias of podman.", "Nothing."),
        "engine_broken": Description("The engine's command can't be started.", "Install it again."),
        "engine_silent": Description("The engine did not answer, or does not work.", "Do what the hint says."),
        "files": Description(
            "Whether the inputs of `[files]` are there.",
            "Mend the path, or what is there."),
        "image": Description("Which image is used.", "Nothing."),
        "install": Description("The packages of `[install]` could be had: uv is there.", "Nothing."),
        "kernel_command_line": Description("The engine can't hide the host's `/proc/cmdline`.", "Use podman."),
        "ledger_room": Description(
            "How much room the ledger has; a warning if it is little.",
            "Erase executions, or make room."),
        "limits": Description("The limits of memory, processes and processors are in force.", "Nothing."),
        "limits_refused": Description(
            "The engine refuses limits.",
            "Delegate the control groups, or run the engine as root."),
        "memory_not_enforced": Description(
            "The memory limit holds for each process, not for the sandbox as a whole.",
            "Delegate the control groups, as the hint says."),
        "no_newuidmap": Description("`newuidmap` is not installed.", "Install it, as the hint says."),
        "no_subordinate_ids": Description(
            "The user has no ranges in `/etc/subuid` and `/etc/subgid`.",
            "Run the line that the hint has, as root."),
        "no_user_namespace": Description(
            "Users in the sandbox are the host's users.",
            "Run podman rootless, or docker with `userns-remap`."),
        "oci_runtime_unusable": Description(
            "The OCI runtime can't start a container here.",
            "Nothing, if another one is used."),
        "oci_unused": Description(
            "Sandboxes are started by a container engine, and not by an OCI runtime directly.",
            'Nothing; the message says why. `runtime = "oci"` insists on it.'),
        "pids_not_enforced": Description(
            "Processes are counted by user id instead of by sandbox.",
            "Delegate the control groups, as the hint says."),
        "pool": Description("A bridge that serves keeps containers ready.", "Nothing."),
        "privileges": Description("The sandbox keeps capabilities, or may gain privileges.", "Use another engine."),
        "proxy": Description("A variable for proxies is wrong or contradicts another.", "Set it as the hint says."),
        "runtime_directory": Description(
            "`XDG_RUNTIME_DIR` is not this user's.",
            "Log in again instead of using `su`."),
        "script": Description("A script ran in a fresh container.", "Nothing."),
        "seccomp_off": Description("The seccomp profile is not in force.", "Use an engine and a kernel with seccomp."),
        "seccomp_refused": Description(
            "The engine refuses the seccomp profile.",
            "Use an engine and a kernel with seccomp."),
        "security_module": Description("A security module confines the sandbox as well.", "Nothing."),
        "server": Description("A server's configuration is wrong.", "Fix it; the message says how."),
        "servers": Description("How many servers are configured.", "Nothing."),
        "storage_vfs": Description(
            "The engine's storage driver copies the whole image at every start.",
            "Use overlay storage, as the hint says."),
        "userns_refused": Description("The engine refuses a user mapping.", "Nothing, if another way is found."),
    }),
)
# fmt: on

DESCRIPTIONS: Final[Mapping[Code, Description]] = {code: row for group in GROUPS for code, row in group.codes.items()}
"""Every code's description."""

_INTRODUCTION = """\
<!-- Made by `python -m mcp_bridge.error_codes`: change mcp_bridge/error_codes.py, not this file. -->

# Error codes

Every error has a code, a sentence that says what is wrong, and mostly a hint that says what to do. Codes stay the same
from version to version, so a script, a client or a shell can branch on them; sentences and hints may change.

| seen by | where the code stands |
|---|---|
| script | `exc.code` of the exception that a call raises; `.code` of a program, a step or a trace |
| client | the error in the answer of `run_python` or of a tool for programs |
| command | `mcp-bridge: CODE: …` on standard error, `error.code` with `--json` |
| doctor | the findings of `mcp-bridge doctor --json` |
| viewer | the answers to the pages of the trace viewer |

A number after *command* is the exit status: 2 for a wrong use, 4 for a refusal, 5 for an execution that is suspended.
Where there is none, `run`, `serve`, `servers`, `image`, `doctor` and `demo` end with 3, and the other commands with 1.
A run that has begun ends with the script's own status, or with 124 if its time was up.
"""


def page() -> str:
    """The text of docs/error-codes.md."""
    parts = [_INTRODUCTION]
    for group in GROUPS:
        rows = ["| code | what it means | what to do | seen by |", "|---|---|---|---|"]
        for code, row in group.codes.items():
            rows.append(f"| `{code}` | {row.meaning} | {row.remedy} | {_seen(group, row)} |")
        parts.append("\n".join([f"## {group.title}\n", f"{group.about}\n", *rows, ""]))
    return "\n".join(parts)


def _seen(group: Group, row: Description) -> str:
    status = f" ({row.exit_status})" if row.exit_status else ""
    names = [f"{audience.name}".lower() for audience in row.seen_by or group.seen_by]
    return ", ".join(name + status if name == "command" else name for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
