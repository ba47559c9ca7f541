#include "restart_loader/criu/criu_rpc.h"

#include "restart_loader/criu/rpc.pb.h"

namespace ppmr {
namespace {

criu::criu_req_type type_of(CriuRequest request) {
  switch (request) {
    case CriuRequest::kDump:
      return criu::DUMP;
    case CriuRequest::kRestore:
      return criu::RESTORE;
    case CriuRequest::kOther:
      break;
  }
  return criu::EMPTY;
}

CriuRequest request_of(int type) {
  if (type == criu::DUMP) return CriuRequest::kDump;
  return type == criu::RESTORE ? CriuRequest::kRestore : CriuRequest::kOther;
}

}  // namespace

std::string criu_request(CriuRequest type, pid_t root, const CriuSettings& settings,
                         const std::string& configuration_file) {
  criu::criu_req request;
  request.set_type(type_of(type));
  criu::criu_opts& options = *request.mutable_opts();
  options.set_images_dir_fd(-1);
  if (type != CriuRequest::kRestore) options.set_pid(root);
  options.set_notify_scripts(true);
  for (const std::string& external : settings.externals) options.add_external(external);
  for (size_t i = 0; i < settings.inherited.size(); ++i) {
    criu::inherit_fd& inherited = *options.add_inherit_fd();
    inherited.set_key(settings.inherited[i]);
    inherited.set_fd(kFirstInheritedFd + static_cast<int>(i));
  }
  options.set_config_file(configuration_file);
  // A restore takes the network lock method from the images.
  if (settings.network_lock != 0 && type == CriuRequest::kDump) {
    options.set_network_lock(settings.network_lock);
  }
  return request.SerializeAsString();
}

std::optional<CriuRequestFields> parse_criu_request(const std::string& message) {
  criu::criu_req request;
  if (!request.ParseFromString(message) || !request.has_type()) return std::nullopt;
  CriuRequestFields fields;
  fields.type = request_of(request.type());
  if (request.opts().has_images_dir_fd()) fields.images_directory = request.opts().images_dir_fd();
  if (request.opts().has_work_dir_fd()) fields.work_directory = request.opts().work_dir_fd();
  return fields;
}

std::string with_directories(const std::string& message, int images_directory, int work_directory) {
  criu::criu_req request;
  if (!request.ParseFromString(message)) return message;
  request.mutable_opts()->set_images_dir_fd(images_directory);
  if (work_directory >= 0) request.mutable_opts()->set_work_dir_fd(work_directory);
  return request.SerializeAsString();
}

std::string without_freezer(const std::string& message) {
  criu::criu_req request;
  if (!request.ParseFromString(message)) return message;
  if (request.has_opts()) request.mutable_opts()->clear_freeze_cgroup();
  return request.SerializeAsString();
}

std::string with_lazy_pages(const std::string& message) {
  criu::criu_req request;
  if (!request.ParseFromString(message)) return message;
  request.mutable_opts()->set_lazy_pages(true);
  return request.SerializeAsString();
}

std::optional<CriuNotification> parse_criu_notification(const std::string& message) {
  criu::criu_resp response;
  if (!response.ParseFromString(message) || response.type() != criu::NOTIFY) return std::nullopt;
  return CriuNotification{response.notify().script(), response.notify().pid()};
}

bool has_succeeded(const std::string& response) {
  criu::criu_resp parsed;
  return parsed.ParseFromString(response) && parsed.success();
}

std::string criu_notification_answer(bool go_on) {
  criu::criu_req answer;
  answer.set_type(criu::NOTIFY);
  answer.set_notify_success(go_on);
  return answer.SerializeAsString();
}

}  // namespace ppmr
