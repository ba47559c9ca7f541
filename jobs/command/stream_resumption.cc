#include "jobs/command/stream_resumption.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/parse_json.h"

namespace ppmr {
namespace {

using nlohmann::json;

Frame frame_of(FrameType type, const StreamPiece& piece) {
  return {.type = type, .position = piece.position, .payload = std::string(piece.bytes)};
}

Frame confirmation_of(FrameType stream, uint64_t position) {
  return {.type = FrameType::kConfirm,
          .position = position,
          .payload = std::string(1, static_cast<char>(stream))};
}

// Returns the stream that a kConfirm names, or kConfirm for a malformed one.
FrameType confirmed_stream(const Frame& frame) {
  return frame.payload.size() == 1 ? static_cast<FrameType>(frame.payload[0]) : FrameType::kConfirm;
}

tl::unexpected<Error> unexpected_frame() {
  return failure(EPROTO, "the command's peer sent a frame that its end does not send");
}

// Returns the bytes as hexadecimal digits, because JSON cannot hold bytes that are not text.
std::string to_hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> from_hexadecimal(const std::string& text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const char* const end = text.data() + i + 2;
    if (std::from_chars(text.data() + i, end, value, 16).ptr != end) return std::nullopt;
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

}  // namespace

std::string to_text(const ClientState& state) {
  return json{{"output", state.got.output},
              {"errors", state.got.errors},
              {"input_confirmed", state.input_confirmed},
              {"input", to_hexadecimal(state.input)},
              {"input_ended", state.input_ended},
              {"signals_confirmed", state.signals_confirmed},
              {"signals", to_hexadecimal(state.signals)}}
      .dump();
}

Result<ClientState> parse_client_state(const std::string& text) {
  const json packed = parse_json(text);
  if (!packed.is_object())
    return failure(EPROTO, "the state of a command's client is not a JSON object");
  try {
    const auto input = from_hexadecimal(packed.at("input"));
    const auto signals = from_hexadecimal(packed.at("signals"));
    if (input && signals) {
      return ClientState{.got = {.output = packed.at("output"), .errors = packed.at("errors")},
                         .input_confirmed = packed.at("input_confirmed"),
                         .input = *input,
                         .input_ended = packed.at("input_ended"),
                         .signals_confirmed = packed.at("signals_confirmed"),
                         .signals = *signals};
    }
    return failure(EPROTO, "the state of a command's client has malformed bytes");
  } catch (const json::exception& error) {
    return failure(EPROTO, std::string("the state of a command's client: ") + error.what());
  }
}

ClientState ClientResumption::state() const {
  return {.got = positions(),
          .input_confirmed = input_.confirmed(),
          .input = input_.unconfirmed(),
          .input_ended = input_ended_,
          .signals_confirmed = signals_.confirmed(),
          .signals = signals_.unconfirmed()};
}

Status ClientResumption::attached(const InputPositions& job_node) {
  const bool has_more_input = job_node.input > input_.produced();
  if (has_more_input || job_node.signals > signals_.produced()) {
    return failure(EPROTO, fmt::format("continue the command: the job node claims to have more {} "
                                       "than this client has sent",
                                       has_more_input ? "input" : "signals"));
  }
  if (Status resumed = input_.resume(job_node.input, job_node.input_passed_on); !resumed) {
    return failure(resumed.error().errno_value,
                   "continue the standard input of the command after the job node was rolled "
                   "back: " +
                       resumed.error().message + " (give large input in files)");
  }
  if (Status resumed = signals_.resume(job_node.signals, job_node.signals); !resumed) {
    return failure(resumed.error().errno_value,
                   "continue to send signals to the command: " + resumed.error().message);
  }
  input_end_sent_ = false;
  return {};
}

Status ClientResumption::take(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kOutput:
      return output_.take(frame.position, frame.payload.size());
    case FrameType::kErrors:
      return errors_.take(frame.position, frame.payload.size());
    case FrameType::kConfirm:
      if (confirmed_stream(frame) == FrameType::kInput) return input_.confirm(frame.position);
      if (confirmed_stream(frame) == FrameType::kSignals) return signals_.confirm(frame.position);
      return unexpected_frame();
    case FrameType::kEnd: {
      if (frame.position != output_.received() + errors_.received()) {
        return failure(EPROTO, "the end of the command does not follow its output");
      }
      const auto end = parse_command_end(frame.payload);
      if (!end) return failure(end.error());
      end_ = *end;
      return {};
    }
    default:
      return unexpected_frame();
  }
}

void ClientResumption::pass_on() {
  output_.pass_on();
  errors_.pass_on();
}

std::optional<Frame> ClientResumption::take_next() {
  if (end_) {
    if (std::exchange(end_answered_, true)) return std::nullopt;
    return Frame{.type = FrameType::kEndTaken};
  }
  if (const auto at = output_.take_confirmation()) return confirmation_of(FrameType::kOutput, *at);
  if (const auto at = errors_.take_confirmation()) return confirmation_of(FrameType::kErrors, *at);
  if (const auto piece = signals_.take_next()) return frame_of(FrameType::kSignals, *piece);
  if (const auto piece = input_.take_next()) return frame_of(FrameType::kInput, *piece);
  if (input_ended_ && input_.is_all_sent() && !std::exchange(input_end_sent_, true)) {
    return Frame{.type = FrameType::kInputEnd, .position = input_.produced()};
  }
  return std::nullopt;
}

Result<InputPositions> ServerResumption::attach(const OutputPositions& client) {
  SentStream output = output_;
  if (Status resumed = output.resume(client.output, client.output); !resumed) {
    return failure(resumed.error());
  }
  if (Status resumed = errors_.resume(client.errors, client.errors); !resumed) {
    return failure(resumed.error());
  }
  output_ = std::move(output);
  end_sent_ = false;
  return InputPositions{.input = input_.received(),
                        .input_passed_on = input_.passed_on(),
                        .signals = signals_.received()};
}

Status ServerResumption::take(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kInput:
      if (input_ended_ || input_.waiting() + frame.payload.size() > kStreamWindowBytes) {
        return failure(EPROTO, "the client sent more input than it may");
      }
      return input_.take(frame.position, frame.payload.size());
    case FrameType::kInputEnd:
      if (Status taken = input_.take(frame.position, 0); !taken) return taken;
      input_ended_ = true;
      return {};
    case FrameType::kSignals:
      if (Status taken = signals_.take(frame.position, frame.payload.size()); !taken) return taken;
      signals_.pass_on();
      return {};
    case FrameType::kConfirm:
      if (confirmed_stream(frame) == FrameType::kOutput) return output_.confirm(frame.position);
      if (confirmed_stream(frame) == FrameType::kErrors) return errors_.confirm(frame.position);
      return unexpected_frame();
    case FrameType::kEndTaken:
      if (!end_sent_) return unexpected_frame();
      end_taken_ = true;
      return {};
    default:
      return unexpected_frame();
  }
}

std::optional<Frame> ServerResumption::take_next() {
  if (const auto at = input_.take_confirmation()) return confirmation_of(FrameType::kInput, *at);
  if (const auto at = signals_.take_confirmation()) {
    return confirmation_of(FrameType::kSignals, *at);
  }
  errors_first_ = !errors_first_;
  for (const bool errors : {errors_first_, !errors_first_}) {
    const FrameType type = errors ? FrameType::kErrors : FrameType::kOutput;
    if (const auto piece = stream_of(type).take_next()) return frame_of(type, *piece);
  }
  if (end_ && output_.is_all_sent() && errors_.is_all_sent() && !std::exchange(end_sent_, true)) {
    return Frame{.type = FrameType::kEnd,
                 .position = output_.sent() + errors_.sent(),
                 .payload = to_text(*end_)};
  }
  return std::nullopt;
}

}  // namespace ppmr
