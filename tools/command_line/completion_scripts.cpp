#include <array>
#include <string_view>

#include "completion.hpp"

namespace vmm::tool {
namespace {

/// The script's text; PROGRAM and ASKED in it stand for the program and for its completion command.
struct Script {
  std::string_view shell;
  std::string_view text;
};

constexpr std::array scripts{
    Script{"bash", R"(# Completion of PROGRAM for bash: PROGRAM completion bash
_PROGRAM() {
  # bash breaks words at = and :, which belong to ours. An empty word begins a new one.
  local -a words=() begins=() lines=()
  local i word
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if ((${#words[@]})) && [[ $word == [=:]* || (-n $word && ${words[-1]} == *[=:]) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
      begins+=("$i")
    fi
  done
  word=${words[-1]}
  local last=${word##*[=:]}
  mapfile -t lines < <("${COMP_WORDS[0]/#\~/$HOME}" ASKED -- "${words[@]}" 2>/dev/null)
  COMPREPLY=()
  for i in "${lines[@]:1}"; do
    i=${i%%$'\t'*}
    COMPREPLY+=("${i#"${word%"$last"}"}")
  done
  case ${lines[0]} in
    files)
      compopt -o filenames -o default 2>/dev/null
      mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$last")
      ;;
    "command "*)
      i=${lines[0]#command }
      if declare -F _command_offset >/dev/null; then
        _command_offset "${begins[i - 1]}"
      elif ((i == ${#words[@]})); then
        mapfile -t COMPREPLY < <(compgen -c -- "$last")
      else
        compopt -o filenames -o default 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$last")
      fi
      ;;
  esac
}
complete -F _PROGRAM PROGRAM
)"},
    Script{"zsh", R"(#compdef PROGRAM
# Completion of PROGRAM for zsh: PROGRAM completion zsh
_PROGRAM() {
  local -a lines candidates
  local line word
  lines=("${(@f)$(${~words[1]} ASKED -- "${(@)words[2,CURRENT-1]}" "$IPREFIX$PREFIX" 2>/dev/null)}")
  for line in "${(@)lines[2,-1]}"; do
    word=${line%%$'\t'*}
    word=${word//:/\\:}
    if [[ $line == *$'\t'* ]]; then
      candidates+=("$word:${line#*$'\t'}")
    else
      candidates+=("$word")
    fi
  done
  if (( ${#candidates} )); then
    _describe -t values value candidates
  fi
  case ${lines[1]} in
    files)
      if [[ $PREFIX == --*=* ]]; then
        compset -P 1 '*='
      fi
      _files
      ;;
    "command "*)
      local -i at=${lines[1]#command }
      words=("${(@)words[at+1,-1]}")
      (( CURRENT -= at ))
      _normal
      ;;
  esac
}
if [[ ${funcstack[1]} == _PROGRAM ]]; then
  _PROGRAM "$@"
else
  compdef _PROGRAM PROGRAM
fi
)"},
    Script{"fish", R"(# Completion of PROGRAM for fish: PROGRAM completion fish
function __PROGRAM_ask
    set -l before (commandline -opc)
    $before[1] ASKED -- $before[2..-1] (commandline -ct | string collect) 2>/dev/null
end

# The first line says what else fish offers by its own means.
function __PROGRAM_is
    string match -q -- "$argv[1]*" (__PROGRAM_ask)[1]
end

function __PROGRAM_candidates
    set -l lines (__PROGRAM_ask)
    printf '%s\n' $lines[2..-1]
end

function __PROGRAM_command
    set -l at (string replace 'command ' '' (__PROGRAM_ask)[1])
    set -l before (commandline -opc)
    complete -C (string join ' ' -- (string escape -- $before[(math $at + 1)..-1]) (commandline -ct | string collect))
end

complete -c PROGRAM -e
complete -c PROGRAM -n 'not __PROGRAM_is files' -f
complete -c PROGRAM -n 'not __PROGRAM_is command' -a '(__PROGRAM_candidates)'
complete -c PROGRAM -n '__PROGRAM_is command' -a '(__PROGRAM_command)'
)"},
};

void replace_all(std::string& text, std::string_view from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::vector<std::string> completion_shells() {
  std::vector<std::string> shells;
  for (const Script& script : scripts) shells.emplace_back(script.shell);
  return shells;
}

std::optional<std::string> completion_script(const std::string& shell, const std::string& program,
                                             const std::string& asked) {
  for (const Script& script : scripts) {
    if (script.shell != shell) continue;
    std::string text{script.text};
    replace_all(text, "PROGRAM", program);
    replace_all(text, "ASKED", asked);
    return text;
  }
  return std::nullopt;
}

}  // namespace vmm::tool
